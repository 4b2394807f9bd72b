"""The file under saved policies and saved runners: a JSON header and raw arrays in a checked frame, and no code.

docs/policy-format.md describes it byte by byte. What a file says is data to be judged: every number in it is checked before
it is used, and nothing in it names a module to import or a function to call.
"""

import dataclasses
import hashlib
import json
import math
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 2

_MAGIC = b"\x89ECL2O\r\n"
_FRAME = struct.Struct("<8sIQQ")  # magic, format, bytes of the header, bytes of the arrays
_NUMBER = struct.Struct("<8sI")  # how it begins in every format
_DIGEST_BYTES = 32
_ALIGNMENT = 8
_UNFINISHED = ".unfinished"
_LARGEST_HEADER = 1 << 24
_MOST_AXES = 32

# The only kinds of numbers a file may hold, by their names in it.
_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("float16", "float32", "float64", "bool"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}


class PolicyFileError(ValueError):
    """A file that is not a policy (or a runner's state), or is damaged, or needs something that was not given."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a file holds: its kind ("policy" or "runner"), a JSON object, and arrays; and the number of its format."""

    kind: str
    header: dict[str, Any]
    arrays: list[np.ndarray]
    number: int = FORMAT


def pack(contents: Contents) -> bytes:
    """The bytes of a file; the same contents give the same bytes."""
    table, blocks, offset = [], [], 0
    for array in contents.arrays:
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"arrays of dtype {array.dtype} cannot be saved; use one of {', '.join(_DTYPES)}.")
        raw = array.astype(_DTYPES[array.dtype.name], order="C").tobytes()
        table.append({"dtype": array.dtype.name, "shape": list(array.shape), "offset": offset})
        blocks.append(raw + b"\0" * (-len(raw) % _ALIGNMENT))
        offset += len(blocks[-1])
    header = {**contents.header, "kind": contents.kind, "arrays": table}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(_FRAME.size + len(text)) % _ALIGNMENT)
    if len(text) > _LARGEST_HEADER:
        raise ValueError(f"the header takes {len(text)} bytes, more than {_LARGEST_HEADER}; keep the metadata small.")
    body = _FRAME.pack(_MAGIC, contents.number, len(text), offset) + text + b"".join(blocks)
    return body + hashlib.sha256(body).digest()


def is_ours(path: Path) -> bool:
    """Whether a file begins as those of this program do."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def unpack(data: bytes, kind: str, name: str) -> Contents:
    """Judge the bytes of a file and read them; `name` is what messages call it."""
    number, header_bytes = _check_frame(data, name)
    start, stop = _FRAME.size + header_bytes, len(data) - _DIGEST_BYTES
    header = _read_header(data[_FRAME.size : start], name)
    if header.pop("kind", None) != kind:
        raise PolicyFileError(f"{name} is a file of ecl2o, but does not hold a {kind}.")
    arrays = _read_arrays(header.pop("arrays", None), data[start:stop], name)
    return Contents(kind, header, arrays, number)


def _check_frame(data: bytes, name: str) -> tuple[int, int]:
    """Ours, not newer than this reader, whole and undamaged, in this order; its format and the length of its header.

    The number comes first: what comes after it may be another frame in a newer format.
    """
    if not data:
        raise PolicyFileError(f"{name} is empty.")
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        raise PolicyFileError(f"{name} is not a file of ecl2o.")
    if len(data) >= _NUMBER.size:
        _, number = _NUMBER.unpack_from(data)
        if number > FORMAT:
            raise PolicyFileError(
                f"{name} has format {number}, and this version of ecl2o reads up to format {FORMAT}; install a newer one."
            )
    if len(data) < _FRAME.size + _DIGEST_BYTES:
        raise PolicyFileError(f"{name} is cut short: it has only {len(data)} bytes.")
    _, number, header_bytes, array_bytes = _FRAME.unpack_from(data)
    total = _FRAME.size + header_bytes + array_bytes + _DIGEST_BYTES
    if len(data) < total:
        raise PolicyFileError(f"{name} is cut short: it has {len(data)} bytes of {total}.")
    if len(data) > total:
        raise PolicyFileError(f"{name} is damaged: {len(data) - total} bytes follow its end.")
    if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise PolicyFileError(f"{name} is damaged: its checksum does not match its contents.")
    if number < 1:
        raise PolicyFileError(f"{name} has format {number}, which does not exist.")
    if header_bytes > _LARGEST_HEADER:
        raise PolicyFileError(f"{name} has a header of {header_bytes} bytes, more than {_LARGEST_HEADER}.")
    return number, header_bytes


def _read_header(text: bytes, name: str) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise PolicyFileError(f"{name} has a header that is not JSON: {error}.") from None
    if not isinstance(header, dict):
        raise PolicyFileError(f"{name} has a header that is not a JSON object.")
    return header


def _read_arrays(table: Any, data: bytes, name: str) -> list[np.ndarray]:
    """The arrays, which must lie one after the other as `pack` lays them, and fill the space exactly."""
    if not isinstance(table, list):
        raise PolicyFileError(f"{name} has no table of arrays.")
    arrays, expected = [], 0
    for number, entry in enumerate(table):
        where = f"array {number} of {name}"
        dtype, shape, offset = _judge_entry(entry, where)
        size = math.prod(shape) * dtype.itemsize
        if offset != expected or offset + size > len(data):
            raise PolicyFileError(f"{where} does not lie where it should: offset {offset}, {size} bytes.")
        array = np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
        if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise PolicyFileError(f"{where} holds truth values that are neither 0 nor 1.")
        arrays.append(array.astype(dtype.newbyteorder("=")))
        expected = offset + size + (-size % _ALIGNMENT)
    if expected != len(data):
        raise PolicyFileError(f"{name} has {len(data) - expected} bytes that belong to no array.")
    return arrays


def _judge_entry(entry: Any, where: str) -> tuple[np.dtype, tuple[int, ...], int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "offset"}:
        raise PolicyFileError(f"{where} is not described by dtype, shape and offset.")
    dtype, shape, offset = entry["dtype"], entry["shape"], entry["offset"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise PolicyFileError(f"{where} has an unknown dtype {_shown(dtype)}.")
    if not isinstance(shape, list) or len(shape) > _MOST_AXES or not all(_is_count(axis) for axis in shape):
        raise PolicyFileError(f"{where} has an absurd shape {_shown(shape)}.")
    if not _is_count(offset):
        raise PolicyFileError(f"{where} has an absurd offset {_shown(offset)}.")
    return _DTYPES[dtype], tuple(shape), offset


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 40


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def read(path: str | os.PathLike[str], kind: str) -> Contents:
    """Read and judge a file."""
    path = Path(path)
    if path.is_char_device() or path.is_block_device():
        raise PolicyFileError(f"{path} is a device, which may have no end; give a file.")
    return unpack(path.read_bytes(), kind, str(path))


def write(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write a file under a temporary name beside it, then rename: whoever reads sees the old file or the new one."""
    path, data = Path(path), pack(contents)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with open(unfinished, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:  # a full disk names no file by itself
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what writers of this file that were killed have left beside it. For whoever knows that nobody is writing it."""
    path = Path(path)
    for beside in path.resolve().parent.iterdir():
        if beside.name.startswith(f".{path.name}.") and beside.name.endswith(_UNFINISHED):
            beside.unlink(missing_ok=True)


def digest(parts: Sequence[bytes]) -> str:
    """A SHA-256 over parts, in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        total.update(struct.pack("<Q", len(part)))
        total.update(part)
    return total.hexdigest()
