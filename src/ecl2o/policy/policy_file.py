"""The file of policies and runners' states: a JSON header and raw arrays with a checksum, and no code.

docs/policy-format.md describes it byte by byte. Every number in a file is checked before it is used. A module is stored as its
class name and its fields. The name is looked up among the library's classes (and those that the caller gives), never imported;
the instance is made without `__init__`, its fields are set after their types are checked, and its `__check_init__` runs.
"""

import dataclasses
import errno
import functools
import hashlib
import inspect
import json
import math
import os
import secrets
import struct
import sys
import types
import typing
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ecl2o import agents, forecasters, problem, solvers
from ecl2o.exceptions import PolicyFileError
from ecl2o.json_text import shorten
from ecl2o.problem.arrays import to_device

FORMAT = 1
MAKE_AGAIN = "If another version of ecl2o made the file, fit it again with this version."

_MAGIC = b"\x89ECL2O\r\n"
_FRAME = struct.Struct("<8sIQQ")  # magic, format, bytes of the header, bytes of the arrays
_NUMBER = struct.Struct("<8sI")  # how it begins in every format
_DIGEST_BYTES = 32
_ALIGNMENT = 8
_UNFINISHED = ".unfinished"
_LARGEST_HEADER = 1 << 24
_MOST_AXES = 32

# The only kinds of numbers a file may hold, by their names in it.
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float16", "float32", "float64", "bool", *_INTEGERS)}
_DEEPEST = 40
LARGEST = 10_000_000  # whole number, such as a window or a period in steps
_BAD_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a file holds: its kind ("policy" or "runner"), a JSON object, and arrays."""

    kind: str
    header: dict[str, Any]
    arrays: list[np.ndarray]


def pack(contents: Contents) -> bytes:
    """Return the bytes of a file; the same contents give the same bytes."""
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
    body = _FRAME.pack(_MAGIC, FORMAT, len(text), offset) + text + b"".join(blocks)
    return body + hashlib.sha256(body).digest()


def is_ours(path: Path) -> bool:
    """Return whether a file starts like a file of ecl2o."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def unpack(data: bytes, kind: str, name: str) -> Contents:
    """Check the bytes of a file and read them; `name` is the file's name in messages."""
    start, stop = _FRAME.size + _check_frame(data, name), len(data) - _DIGEST_BYTES
    try:
        header = json.loads(data[_FRAME.size : start].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise PolicyFileError(f"{name} has a header that is not JSON: {error}.") from None
    if not isinstance(header, dict):
        raise PolicyFileError(f"{name} has a header that is not a JSON object.")
    if header.pop("kind", None) != kind:
        raise PolicyFileError(f"{name} is a file of ecl2o, but does not hold a {kind}.")
    return Contents(kind, header, _read_arrays(header.pop("arrays", None), data[start:stop], name))


def _check_frame(data: bytes, name: str) -> int:
    """Return the length of the header, if the file is ours, not newer than this reader, whole and undamaged.

    The format is checked first: a newer one may have another frame.
    """
    if not data:
        raise PolicyFileError(f"{name} is empty.")
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        raise PolicyFileError(f"{name} is not a file of ecl2o. Policies are written by `ecl2o fit` and `ecl2o guard`.")
    if len(data) >= _NUMBER.size and (number := _NUMBER.unpack_from(data)[1]) > FORMAT:
        raise PolicyFileError(f"{name} has format {number}, but this ecl2o reads format {FORMAT} at most; update it.")
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
        raise PolicyFileError(f"{name} has format {number}, but this ecl2o reads format {FORMAT}. {MAKE_AGAIN}")
    if header_bytes > _LARGEST_HEADER:
        raise PolicyFileError(f"{name} has a header of {header_bytes} bytes, more than {_LARGEST_HEADER}.")
    return header_bytes


def _read_arrays(table: Any, data: bytes, name: str) -> list[np.ndarray]:
    """Return the arrays, which must fill the space exactly, one after the other."""
    if not isinstance(table, list):
        raise PolicyFileError(f"{name} has no table of arrays.")
    arrays, expected = [], 0
    for number, entry in enumerate(table):
        where = f"array {number} of {name}"
        dtype, shape, offset = _check_entry(entry, where)
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


def _check_entry(entry: Any, where: str) -> tuple[np.dtype, tuple[int, ...], int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "offset"}:
        raise PolicyFileError(f"{where} is not described by dtype, shape and offset.")
    dtype, shape, offset = entry["dtype"], entry["shape"], entry["offset"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise PolicyFileError(f"{where} has an unknown dtype {shorten(dtype)}.")
    if not isinstance(shape, list) or len(shape) > _MOST_AXES or not all(_is_count(axis) for axis in shape):
        raise PolicyFileError(f"{where} has an impossible shape {shorten(shape)}.")
    if not _is_count(offset):
        raise PolicyFileError(f"{where} has an impossible offset {shorten(offset)}.")
    return _DTYPES[dtype], tuple(shape), offset


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 40


def read(path: str | os.PathLike[str], kind: str) -> Contents:
    """Read and check a file."""
    path = Path(path)
    if path.is_char_device() or path.is_block_device():
        raise PolicyFileError(f"{path} is a device, not a file.")
    return unpack(path.read_bytes(), kind, str(path))


def write(path: str | os.PathLike[str], contents: Contents, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file under a temporary name, then rename it: readers see the old file or the new one.

    A `durable` one is on disk at the return, its name too: it is still there if power fails.
    """
    path, data = Path(path), pack(contents)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
        if durable:
            flush_folder(path.parent)
    except OSError as error:  # a full disk names no file by itself
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        unfinished.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Flush a folder to disk: the names that were made, changed and removed in it.

    Where the file system cannot flush folders it does nothing: a power failure may then undo the last change of a name.
    """
    if os.name == "nt":  # opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # of file systems that cannot flush folders
            raise OSError(error.errno, error.strerror, str(folder)) from None
    finally:
        os.close(descriptor)


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what killed writers of this file left beside it. Call it only while no other process writes the file.

    Flushes the folder: a writer may have been killed after it renamed the file, and before that was on disk.
    """
    path = Path(path)
    for beside in path.parent.iterdir():
        if beside.name.startswith(f".{path.name}.") and beside.name.endswith(_UNFINISHED):
            beside.unlink(missing_ok=True)
    flush_folder(path.parent)


def digest(parts: Sequence[bytes]) -> str:
    """Return a SHA-256 over parts, in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        total.update(struct.pack("<Q", len(part)))
        total.update(part)
    return total.hexdigest()


@functools.cache
def library_classes() -> dict[str, type[eqx.Module]]:
    """Return every public, concrete module of problem, agents, forecasters and solvers, by "package.Class"."""
    found: dict[str, type[eqx.Module]] = {}
    for package in (problem, agents, forecasters, solvers):
        inside = package.__name__
        modules = [m for name, m in sorted(sys.modules.items()) if f"{name}.".startswith(f"{inside}.")]
        entries = [(module.__name__, *entry) for module in modules for entry in vars(module).items()]
        for defined_in, name, cls in entries:
            if _is_storable_class(cls) and cls.__module__ == defined_in and not name.startswith("_"):
                key = f"{inside.rpartition('.')[2]}.{cls.__name__}"
                if found.setdefault(key, cls) is not cls:
                    raise TypeError(f"two classes are called {key} in policy files: {found[key]} and {cls}.")
    return found


def _is_storable_class(cls: Any) -> bool:
    concrete = isinstance(cls, type) and issubclass(cls, eqx.Module) and not inspect.isabstract(cls)
    return concrete and not cls.__name__.startswith("Abstract")


def _class_name(cls: type) -> str:
    """Return the name of a class in files: "agents.ROBD", or "user.Mine" for one outside the library."""
    return next((name for name, own in library_classes().items() if own is cls), f"user.{cls.__name__}")


def allowed_classes(extra: Sequence[type]) -> dict[str, type[eqx.Module]]:
    """Return the classes that a file may name: the library's, and the caller's."""
    allowed = dict(library_classes())
    for cls in extra:
        if not _is_storable_class(cls):
            raise TypeError(f"classes must be concrete subclasses of equinox.Module, got {cls!r}.")
        if allowed.setdefault(_class_name(cls), cls) is not cls:
            raise TypeError(f"two of the classes are called {cls.__name__}.")
    return allowed


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Describes values in JSON; collects arrays, and the places of functions, of which only the name is stored."""

    arrays: list[np.ndarray] = dataclasses.field(default_factory=list)
    functions: list[str] = dataclasses.field(default_factory=list)

    def encode(self, value: Any, where: str) -> Any:
        """Return the description of a value; raise TypeError for one that cannot be saved."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            if (wrong := _oversize(value)) is not None:
                raise ValueError(f"{where} cannot be saved: {wrong}.")
            return value
        if isinstance(value, jax.Array | np.ndarray):
            self.arrays.append(_stored_array(value, where))
            return {"array": len(self.arrays) - 1}
        if type(value) in (tuple, list):
            items = [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
            return {type(value).__name__: items}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self.encode(item, f"{where}[{key!r}]") for key, item in value.items()}}
        if isinstance(value, eqx.Module) and _is_storable_class(type(value)):
            names = [field.name for field in dataclasses.fields(value)]
            fields = {name: self.encode(getattr(value, name), f"{where}.{name}") for name in names}
            return {"module": _class_name(type(value)), "fields": fields}
        if callable(value):
            self.functions.append(where)
            plain = value.func if isinstance(value, jax.tree_util.Partial) else value
            return {"function": getattr(plain, "__qualname__", type(plain).__name__)}
        raise TypeError(f"{where} cannot be saved: a {type(value).__name__} is neither a module nor an array nor JSON.")


def _stored_array(value: Any, where: str) -> np.ndarray:
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):
        raise TypeError(f"{where} cannot be saved: it has dtype {value.dtype}; keep jax.random.key_data instead.")
    array = np.asarray(value)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"{where} cannot be saved: it holds NaN.")
    return array


@dataclasses.dataclass(frozen=True)
class Decoder:
    """Rebuilds values from descriptions; `name` is the file's name in messages."""

    name: str
    arrays: list[np.ndarray]
    classes: dict[str, type[eqx.Module]]

    def decode(self, described: Any, where: str, depth: int = 0) -> Any:
        """Return the value; raise PolicyFileError with the place of what is wrong."""
        if depth > _DEEPEST:
            raise PolicyFileError(f"{where} of {self.name} is nested too deeply.")
        if described is None or isinstance(described, bool | int | float | str):
            if (wrong := _oversize(described)) is not None:
                raise PolicyFileError(f"{where} of {self.name} cannot be right: {wrong}.")
            return described
        if isinstance(described, dict) and set(described) == {"module", "fields"}:
            return self._module(described["module"], described["fields"], where, depth)
        if isinstance(described, dict) and len(described) == 1:
            ((kind, content),) = described.items()
            if kind == "array" and type(content) is int and 0 <= content < len(self.arrays):
                if self.arrays[content].dtype.kind == "f" and np.isnan(self.arrays[content]).any():
                    raise PolicyFileError(f"{where} of {self.name} holds NaN.")
                return to_device(self.arrays[content])
            if kind in ("tuple", "list") and isinstance(content, list):
                items = [self.decode(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(content)]
                return tuple(items) if kind == "tuple" else items
            if kind == "dict" and isinstance(content, dict):
                return {key: self.decode(item, f"{where}[{key!r}]", depth + 1) for key, item in content.items()}
            if kind == "function":
                raise PolicyFileError(f"{where} of {self.name} is a function; give load(path, problem=...).")
        raise PolicyFileError(f"{where} of {self.name} is not a description of a value.")

    def _module(self, class_name: Any, described: Any, where: str, depth: int) -> eqx.Module:
        if not isinstance(class_name, str) or not isinstance(described, dict):
            raise PolicyFileError(f"{where} of {self.name} is not a description of a module.")
        cls = self.classes.get(class_name)
        if cls is None:
            is_users = class_name.startswith("user.")
            hint = (
                f"; give your class: load(path, classes=({class_name[5:][:60]},))." if is_users else f". {MAKE_AGAIN}"
            )
            raise PolicyFileError(f"{where} of {self.name} is of the unknown class {class_name[:80]!r}{hint}")
        values = {key: self.decode(item, f"{where}.{key}", depth + 1) for key, item in described.items()}
        try:
            return _rebuild(cls, values)
        except _BAD_VALUE as error:
            why = f"is not a valid {cls.__name__}: {str(error).rstrip('.')}. {MAKE_AGAIN}"
            raise PolicyFileError(f"{where} of {self.name} {why}") from None


def _oversize(value: Any) -> str | None:
    """Return what is wrong with a whole number that is too large; None for anything else."""
    if not isinstance(value, int) or abs(value) <= LARGEST:
        return None
    size = value if abs(value) < 10**20 else f"a number of {len(str(abs(value)))} digits"
    return f"it is {size}, and whole numbers in policies are at most {LARGEST}"


def warn_of_rounding(arrays: Sequence[np.ndarray], name: str) -> None:
    """Warn that doubles are rounded, if JAX runs in 32 bits."""
    if not jax.config.read("jax_enable_x64") and any(a.dtype == np.float64 for a in arrays):
        advice = "to keep them, set jax_enable_x64."
        warnings.warn(f"JAX runs in 32 bits, so the float64 numbers of {name} are rounded; {advice}", stacklevel=3)


def _rebuild(cls: type[eqx.Module], values: dict[str, Any]) -> eqx.Module:
    """Return an instance with these fields, checked like one made by its class, without running `__init__`."""
    fields, hints = {f.name: f for f in dataclasses.fields(cls)}, _hints(cls)
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"it has no field {unknown[0][:60]!r}")
    module = object.__new__(cls)
    for name, field in fields.items():
        value = values[name] if name in values else _default(field)
        if not _fits(value, hints.get(name, Any)):
            expected = getattr(hints[name], "__name__", None) or str(hints[name])
            raise TypeError(f"{name} must be {expected}, got {type(value).__name__}.")
        object.__setattr__(module, name, value)
    for kind in cls.__mro__:
        if "__check_init__" in vars(kind):
            vars(kind)["__check_init__"](module)
    return module


def _default(field: dataclasses.Field) -> Any:
    """Return the default of a field that the file does not have."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        raise ValueError(f"field {field.name!r} is missing.")
    converter: Callable[[Any], Any] = field.metadata.get("converter", lambda value: value)
    return converter(value)


_hints = functools.cache(typing.get_type_hints)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of the declared type: classes, unions, literals, containers, arrays by kind and axes."""
    if hint is Any:
        return True
    if hasattr(hint, "dim_str"):
        return _fits_array(value, hint)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in options)
    if origin is typing.Literal:
        return any(type(value) is type(option) and value == option for option in options)
    if origin is tuple and isinstance(value, tuple):
        if len(options) == 2 and options[1] is Ellipsis:
            return all(_fits(item, options[0]) for item in value)
        return len(value) == len(options) and all(_fits(*pair) for pair in zip(value, options, strict=True))
    if origin is not None:
        return isinstance(value, origin)
    if hint is None:
        return value is None
    if hint in (int, float):
        return type(value) is hint or (hint is float and type(value) is int)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _fits_array(value: Any, hint: Any) -> bool:
    axes = hint.dim_str.split()
    flexible = any(axis.startswith("*") or "..." in axis for axis in axes)
    return isinstance(value, hint.dtype[hint.array_type, "..."]) and (flexible or value.ndim == len(axes))
