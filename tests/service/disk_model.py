"""What a folder holds after power failed: replay a log of disk_shim.c.

The model is POSIX with nothing added, because file systems differ in what they add:

- A write or a change of size is durable once a flush (fsync, fdatasync) of that file, which began after it, has ended.
- A name that was created, renamed or removed is durable once a flush of the folder, which began after it, has ended. A flush
  of the file is not enough (on ext4 it is, for new files).
- A flush of a file that fails loses what it should have flushed: Linux then counts these pages as written, and a later flush
  reports success without them. Processes go on reading them from memory. A failed flush of a folder flushes nothing.
- Without a flush anything may be there. Each sector of 512 bytes of each write is there or not, in any combination; names
  change in their order, as in the journal of every current file system.

SQLite's -shm file is left out: it is a mapped index of the write-ahead log, and the first connection after a crash rebuilds it.
"""

import dataclasses
import os
import random
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
_HEAD = struct.Struct("<iiqqiiII")


class Kind(IntEnum):
    START = 0
    OPEN = 1
    WRITE = 2
    SYNC_BEGIN = 3
    SYNC_END = 4
    RENAME = 5
    UNLINK = 6
    TRUNCATE = 7
    SENT = 8
    UNSENT = 9
    RECEIVED = 10
    MAPPED = 11
    UNSUPPORTED = 12


class Call(IntEnum):
    """Calls that the shim can let fail."""

    NONE = 0
    WRITE = 1
    SYNC = 2
    OPEN = 3
    RENAME = 4
    TRUNCATE = 5
    UNLINK = 6
    ANSWER = 7


class Event(NamedTuple):
    kind: Kind
    fd: int
    offset: int
    flags: int
    error: int
    is_folder: bool
    path: str
    data: bytes


def read_log(path: Path) -> list[Event]:
    """Return the events of a log. Bytes that a call did not send are cut from what it announced."""
    log, at, events, last_sent = path.read_bytes(), 0, [], {}
    while at < len(log):
        kind, fd, offset, flags, error, is_folder, path_size, data_size = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        name, data = log[at : at + path_size].decode(), log[at + path_size : at + path_size + data_size]
        at += path_size + data_size
        if kind == Kind.SENT:
            last_sent[fd] = len(events)
        if kind == Kind.UNSENT:
            sent = events[last_sent[fd]]
            events[last_sent[fd]] = sent._replace(data=sent.data[: len(sent.data) - offset])
            continue
        events.append(Event(Kind(kind), fd, offset, flags, error, bool(is_folder), name, data))
    return events


class Change(NamedTuple):
    """A write at an offset, or, without data, a change of size."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            content[self.offset :] = bytes(max(0, self.offset - len(content)))
            return
        if self.offset > len(content):
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data

    def split(self) -> Iterator["Change"]:
        """Give the parts that a disk writes at once."""
        if self.data is None:
            yield self
            return
        at, end = self.offset, self.offset + len(self.data)
        while at < end:
            until = min(end, (at // SECTOR + 1) * SECTOR)
            yield Change(at, self.data[at - self.offset : until - self.offset])
            at = until


@dataclasses.dataclass(eq=False)
class File:
    """A file: what processes read, what is on disk, and the changes that may be."""

    cached: bytearray = dataclasses.field(default_factory=bytearray)
    durable: bytearray = dataclasses.field(default_factory=bytearray)
    unsynced: list[Change] = dataclasses.field(default_factory=list)
    flushed: int = 0  # changes that are no longer in `unsynced`

    def change(self, change: Change) -> None:
        change.apply(self.cached)
        self.unsynced.append(change)

    def flush(self, until: int, failed: bool) -> None:
        """Flush all changes before the `until`-th of the file's life, or lose them."""
        count = max(0, until - self.flushed)
        for change in [] if failed else self.unsynced[:count]:
            change.apply(self.durable)
        self.flushed += count
        del self.unsynced[:count]

    def with_changes(self, changes: Iterable[Change]) -> bytes:
        content = bytearray(self.durable)
        for change in changes:
            change.apply(content)
        return bytes(content)


class _Naming(NamedTuple):
    """A name that now means a file, or, if that is None, nothing; `old` is the name that it had."""

    name: str
    file: File | None
    old: str | None = None

    def apply(self, names: dict[str, File]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.file is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.file


class Disk:
    """The files of a folder, before and after a loss of power. It starts empty."""

    def __init__(self):
        self.names: dict[str, File] = {}
        self.durable_names: dict[str, File] = {}
        self.unsynced_names: list[_Naming] = []
        self.mapped: set[str] = set()
        self._names_flushed = 0
        self._open: dict[int, tuple[str, File | None]] = {}  # None: the folder
        self._flushes: dict[int, int] = {}  # by the number of a running flush: how many changes it covers
        self._last: tuple[File, Change] | None = None

    def apply(self, event: Event) -> bool:
        """Do what an event did; return whether that may change what is on disk."""
        name, file = self._open.get(event.fd, (event.path, None))
        match event.kind:
            case Kind.START:  # a new process
                self._open.clear()
                return False
            case Kind.OPEN:
                return self._apply_open(event)
            case Kind.WRITE | Kind.TRUNCATE:
                if file is None:
                    raise AssertionError(f"{name} is no file")
                change = Change(event.offset, event.data if event.kind == Kind.WRITE else None)
                file.change(change)
                self._last = (file, change)
            case Kind.SYNC_BEGIN:
                unsynced = self.unsynced_names if file is None else file.unsynced
                self._flushes[event.offset] = len(unsynced) + (self._names_flushed if file is None else file.flushed)
                return False
            case Kind.SYNC_END:
                self._apply_flush(file, self._flushes.pop(event.offset), event.error != 0)
            case Kind.RENAME:
                self._name(_Naming(event.data.decode(), self.names[event.path], event.path))
            case Kind.UNLINK:
                self._name(_Naming(event.path, None))
            case Kind.MAPPED:
                self.mapped.add(name)
                return False
            case Kind.UNSUPPORTED:
                raise AssertionError(f"the model does not know {event.path}")
            case _:
                return False
        return _is_kept(name) or file is None

    def _apply_open(self, event: Event) -> bool:
        if event.is_folder:
            self._open[event.fd] = (event.path, None)
            return False
        is_new = event.path not in self.names
        if is_new:
            self._name(_Naming(event.path, File()))
        file = self.names[event.path]
        self._open[event.fd] = (event.path, file)
        is_cut = bool(event.flags & os.O_TRUNC and file.cached)
        if is_cut:
            file.change(Change(0, None))
        return (is_new or is_cut) and _is_kept(event.path)

    def _apply_flush(self, file: File | None, until: int, failed: bool) -> None:
        if file is not None:
            file.flush(until, failed)
        elif not failed:
            count = max(0, until - self._names_flushed)
            for naming in self.unsynced_names[:count]:
                naming.apply(self.durable_names)
            self._names_flushed += count
            del self.unsynced_names[:count]

    def _name(self, naming: _Naming) -> None:
        naming.apply(self.names)
        self.unsynced_names.append(naming)

    @property
    def durable_version(self) -> tuple:
        """Equal values mean that what is certainly on disk is equal."""
        return (self._names_flushed, *((name, id(file), file.flushed) for name, file in self.durable_names.items()))

    # What is left when power fails now

    def drop_unsynced(self) -> dict[str, bytes]:
        """Return the files if only flushed changes are left."""
        return {name: bytes(file.durable) for name, file in self.durable_names.items() if _is_kept(name)}

    def keep_all(self, _chance: random.Random | None = None) -> dict[str, bytes]:
        """Return the files if all changes are left, but those of a failed flush."""
        return {name: file.with_changes(file.unsynced) for name, file in self._late_names().items() if _is_kept(name)}

    def tear_last(self, chance: random.Random) -> dict[str, bytes]:
        """Return the files if all changes are left, but the last write only up to some sector."""
        files = {}
        for name, file in self._late_names().items():
            changes = list(file.unsynced)
            if self._last is not None and changes and self._last[0] is file and changes[-1] is self._last[1]:
                parts = list(changes.pop().split())
                changes += parts[: chance.randrange(len(parts))]
            if _is_kept(name):
                files[name] = file.with_changes(changes)
        return files

    def keep_some(self, chance: random.Random) -> dict[str, bytes]:
        """Return the files if each sector of each unsynced change is left or not, by chance."""
        names, share = dict(self.durable_names), chance.choice((0.1, 0.5, 0.9))
        for naming in self.unsynced_names[: chance.randint(0, len(self.unsynced_names))]:
            naming.apply(names)
        return {
            name: file.with_changes(
                part for change in file.unsynced for part in change.split() if chance.random() < share
            )
            for name, file in names.items()
            if _is_kept(name)
        }

    def _late_names(self) -> dict[str, File]:
        names = dict(self.durable_names)
        for naming in self.unsynced_names:
            naming.apply(names)
        return names


def _is_kept(name: str) -> bool:
    return not name.endswith("-shm")


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder hold these files and no others."""
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
