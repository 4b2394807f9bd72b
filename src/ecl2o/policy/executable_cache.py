"""The cache of compiled programs on disk, so that a process that makes a single step need not trace or compile.

JAX's cache saves compilation only. Where it has a folder (`jax_compilation_cache_dir`, which `use_cache_folder` sets), the
functions of a run are stored beside it, ready to be called.

A file is for one structure and one set of sizes, not for a policy's numbers, and for the library, versions and processor that
made it. It is checked when it is read, and made again if it does not fit. Files that were not read for a month are removed
when the next one is written. Like JAX's own cache it holds machine code: a folder in which someone else could have put a file
is not used.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import pickle
import platform
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jaxlib import lapack

from ecl2o.exceptions import PolicyFileError
from ecl2o.policy import policy_file
from ecl2o.policy.policy_file import Contents, Encoder
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import CompiledStepper, ProgramSize, RunShape, Spec, StepFunctions, compile_stepper
from ecl2o.running.stored_jit import store_executables

_KIND = "program"
_LIBRARY = Path(__file__).parents[1]
_PREFIX = "ecl2o-run-"
_UNUSED_SECONDS = 30 * 24 * 3600.0
_PICKLED = {  # all that a serialized program names: JAX's records of shapes and devices
    "jax": ["P"],
    "jax._src.core": ["ManualAxisType", "MemorySpace", "ShapedArray"],
    "jax._src.interpreters.pxla": ["AllArgsInfo", "UnloadedMeshExecutable"],
    "jax._src.layout": ["Layout"],
    "jax._src.linear_util": ["DebugInfo"],
    "jax._src.mesh": ["AbstractMesh"],
    "jax._src.named_sharding": ["_unpickle_named_sharding"],
    "jax._src.sharding_impls": ["_unpickle_single_device_sharding"],
    "jax._src.stages": ["ArgInfo"],
    "jaxlib._jax": ["DeviceList"],
    "numpy": ["dtype"],
}

_MOST_PROGRAMS = 256
_programs: dict[Path, Any] = {}  # of this process, one for each structure and set of sizes
_lock = threading.RLock()  # of `_programs` and of JAX's settings
_compiling = 0  # threads that compile without JAX's cache


def use_cache_folder() -> None:
    """Let JAX and runners store compiled programs in the user's cache folder, ~/.cache/ecl2o/programs.

    A folder that JAX has, from its configuration or from JAX_COMPILATION_CACHE_DIR (empty: none), is used instead. A missing
    folder is made for this user only. One in which someone else could put programs is not used, by JAX neither.
    """
    settings: Any = jax.config
    is_default = "JAX_COMPILATION_CACHE_DIR" not in os.environ and settings.jax_compilation_cache_dir is None
    if is_default:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        jax.config.update("jax_compilation_cache_dir", os.path.join(base, "ecl2o", "programs"))
    check_cache_folder()
    if is_default and not os.access(settings.jax_compilation_cache_dir or "", os.W_OK):
        jax.config.update("jax_compilation_cache_dir", None)
    store_executables(run_stored)
    if settings.jax_compilation_cache_dir:
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def check_cache_folder() -> None:
    """Keep JAX from a folder of compiled programs that others can write to; folders on other machines are not checked."""
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir and "://" not in settings.jax_compilation_cache_dir:
        folder = _find_folder()
        jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))
        compilation_cache.reset_cache()


def _find_folder() -> Path | None:
    """Make JAX's folder if it is missing; return it without symbolic links, None if it is not only this user's to write."""
    settings: Any = jax.config
    if not settings.jax_compilation_cache_dir or "://" in settings.jax_compilation_cache_dir:
        return None
    folder = Path(settings.jax_compilation_cache_dir)
    try:
        for place in (*reversed(folder.parents), folder):
            place.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve(strict=True)
        for place in (folder, *folder.parents):
            if fault := _find_fault(place.stat(), is_parent=place != folder):
                reason = f"compiled programs are not cached, because others could replace them: {place} {fault}."
                advice = "Set JAX_COMPILATION_CACHE_DIR to a folder that only you can write to."
                warnings.warn(f"{reason} {advice}", stacklevel=2)
                return None
    except OSError:  # a service without a home compiles every time
        return None
    return folder


def _find_fault(about: os.stat_result, is_parent: bool = False) -> str | None:
    """Return what lets others write a file or folder, or replace what is in a parent folder; None if only root and we can."""
    if os.name == "nt":  # has no modes
        return None
    if about.st_uid not in (0, os.geteuid()):
        return f"belongs to user {about.st_uid}"
    others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_parent and (about.st_mode & stat.S_ISVTX or (others == stat.S_IWGRP and _is_private(about.st_gid))):
        return None
    return f"has mode {stat.S_IMODE(about.st_mode):o}" if others else None


def _is_private(group: int) -> bool:
    """Return whether a group is the user's own, as Debian and Fedora make one for each user."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
        return found.gr_name == user and set(found.gr_mem) <= {user}
    return False


def compile_cached(stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> tuple[CompiledStepper, list[Any]]:
    """Return what `compile_stepper` does, with the functions of one stream from the cache; the others are traced on use."""
    arrays = _find_arrays(stepper)
    path = _find_path(stepper, arrays, sizes, dtype)
    if path is None:
        return compile_stepper(stepper, sizes, dtype)
    return _keep(path, lambda: _load_program(path, stepper, sizes, dtype)), arrays


def cache_function(
    stepper: Stepper, sizes: RunShape, dtype: np.dtype, name: str, jitted: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a jitted function of arrays, made from a stepper, whose executable is in the cache under this name.

    It must depend on nothing but the stepper's structure, the sizes and the dtype. Its first call reads or compiles it.
    """
    found = _find_path(stepper, _find_arrays(stepper), sizes, dtype)
    if found is None:
        return jitted
    path = found.with_name(f"{found.name}-{name}")
    return _keep(path, lambda: _CachedExecutable(path, lambda: jitted))


def cache_numbers(
    stepper: Stepper, sizes: RunShape, dtype: np.dtype, name: str, find: Callable[[], tuple[int, ...]]
) -> tuple[int, ...]:
    """Return numbers that depend on nothing but a stepper's structure, the sizes and the dtype; from the cache, or found."""
    program = _find_path(stepper, _find_arrays(stepper), sizes, dtype)
    if program is None:
        return find()
    path = program.with_name(f"{program.name}-{name}")
    if (contents := _read(path)) is not None:
        return tuple(contents.header["numbers"])
    numbers = find()
    with contextlib.suppress(OSError):
        _write(path, {"numbers": numbers})
    return numbers


def run_stored(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function of `stored_jit`; its executable for arguments of this structure comes from the cache, if there is one.

    Arguments that consist of more than arrays, plain values and the library's modules have none.
    """
    arrays, others = eqx.partition(arguments, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{leaf.shape}", arrays)
    name = f"{function.__module__}.{function.__qualname__}"
    path = _find_file(lambda encoder: [name, *(encoder.encode(each, "it") for each in eqx.combine(shapes, others))])
    if path is None:
        return function(*arguments)

    def run(*leaves: Any) -> Any:
        return function(*eqx.combine(jax.tree.unflatten(structure, leaves), others))

    return _keep(path, lambda: _CachedExecutable(path, lambda: jax.jit(run)))(*leaves)


def is_cached(stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> bool:
    """Return whether programs of this structure and these sizes are in the cache."""
    path = _find_path(stepper, _find_arrays(stepper), sizes, dtype)
    return path is not None and path.exists()


def _find_arrays(stepper: Stepper) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(stepper) if isinstance(leaf, jax.Array | np.ndarray)]


def _keep(path: Path, make: Callable[[], Any]) -> Any:
    """Return this process's program of a file. Two threads may both make it; one of the two is kept."""
    with _lock:
        found = _programs.get(path)
    if found is None:
        made = make()
        with _lock:
            while len(_programs) >= _MOST_PROGRAMS:
                del _programs[next(iter(_programs))]
            found = _programs.setdefault(path, made)
    return found


def _load_program(path: Path, stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> CompiledStepper:
    @functools.cache
    def traced() -> CompiledStepper:
        return compile_stepper(stepper, sizes, dtype)[0]

    def cached(name: str) -> Callable[..., Any]:
        return _CachedExecutable(path.with_name(f"{path.name}-{name}"), lambda: getattr(traced().one, name))

    def trace_on_use(name: str) -> Callable[..., Any]:
        return lambda *arguments: getattr(traced().one, name)(*arguments)

    functions = {name: cached(name) for name in ("begin", "share", "advance", "figures")}
    one = StepFunctions(**functions, inspect=trace_on_use("inspect"), play=trace_on_use("play"))
    contents = _read(path)
    if contents is None:
        carried, size, clock = traced().carried, traced().size, traced().clock
        with contextlib.suppress(OSError):
            shapes = [[spec.shape, str(spec.dtype)] for spec in carried]
            _write(path, {"carried": shapes, "size": size, "clock": clock})
    else:
        carried = tuple(Spec(tuple(shape), dtype) for shape, dtype in contents.header["carried"])
        clock = contents.header["clock"]
        size, clock = ProgramSize(*contents.header["size"]), None if clock is None else tuple(clock)
    return CompiledStepper(one, carried, lambda axis: traced().streams(axis), size, clock)


class _CachedExecutable:
    """A function of arrays; its first call reads it from its file, or compiles it and writes it there."""

    def __init__(self, path: Path, find: Callable[[], Any]):
        self._path, self._find, self._run = path, find, None

    def __call__(self, *arguments: Any) -> Any:
        if self._run is not None:
            return self._run(*arguments)
        with contextlib.suppress(Exception):  # a program of another build may fail in any way: make it again
            found = self._read(arguments)
            if found is not None:
                result = found(*arguments)
                self._run = found
                return result
        self._run = self._make(arguments)
        return self._run(*arguments)

    def _read(self, arguments: Any) -> Callable[..., Any] | None:
        contents = _read(self._path)
        if contents is None:
            return None
        taken = jax.tree.structure((arguments, {}))
        given = jax.tree.structure(_decode_structure(contents.header["results"]))
        return _deserialize(contents.arrays[0].tobytes(), taken, given)

    def _make(self, arguments: Any) -> Callable[..., Any]:
        lowered = self._find().lower(*arguments)
        with _without_jax_cache():  # a program from JAX's cache cannot be serialized
            made = lowered.compile()
        with contextlib.suppress(OSError, TypeError, ValueError, NotImplementedError):
            results = Encoder().encode(jax.tree.map(lambda _: 0, lowered.out_info), "results")
            _write(self._path, {"results": results}, serialize_executable.serialize(made)[0])
        return made


class _Unpickler(serialize_executable._JaxPjrtUnpickler):
    """JAX's reader of serialized programs, which finds nothing but what these need."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if global_name not in _PICKLED.get(module_name, []):
            raise pickle.UnpicklingError(f"a program does not need {module_name}.{global_name}.")
        return super().find_class(module_name, global_name)


def _deserialize(data: bytes, taken: Any, given: Any) -> Callable[..., Any]:
    """Do what `serialize_executable.deserialize_and_load` does, but unpickle programs only."""
    if b"lapack_" in data:  # JAX finds LAPACK's functions when it lowers a call; without them the call ends the process
        lapack.prepare_lapack_call("potrf", np.dtype(np.float64))
    unloaded, arguments, no_keywords = _Unpickler(io.BytesIO(data), jax.devices()[0].client).load()
    return jax.stages.Compiled(unloaded.load(), [], taken.unflatten(arguments), given, no_kwargs=no_keywords)


def _decode_structure(described: Any) -> Any:
    """Return what `Encoder` described, without checking the fields of modules: they hold numbers of no meaning."""
    if not isinstance(described, dict):
        return described
    if "module" in described:
        module = object.__new__(policy_file.library_classes()[described["module"]])
        for name, value in described["fields"].items():
            object.__setattr__(module, name, _decode_structure(value))
        return module
    ((kind, content),) = described.items()
    if kind == "dict":
        return {name: _decode_structure(each) for name, each in content.items()}
    return {"tuple": tuple, "list": list}[kind](map(_decode_structure, content))


def _find_path(stepper: Stepper, arrays: Sequence[Any], sizes: RunShape, dtype: np.dtype) -> Path | None:
    """Return where its programs are stored; None without a folder, or if it has code that is not this library's."""
    agent, owner = stepper.agent, type(stepper.agent)
    kind = f"{owner.__module__}.{owner.__qualname__}"  # the service's own is not among those of policy files
    if not kind.startswith(f"{_LIBRARY.name}."):
        return None
    fields = [getattr(agent, field.name) for field in dataclasses.fields(agent)]
    shapes = [[list(array.shape), str(array.dtype)] for array in arrays]

    def describe(encoder: Encoder) -> list[Any]:
        parts = [encoder.encode(part, "it") for part in (fields, stepper.problem, stepper.forecaster)]
        return [kind, parts, stepper.screen is not None, dataclasses.astuple(sizes), str(dtype), shapes]

    return _find_file(describe)


def _find_file(describe: Callable[[Encoder], list[Any]]) -> Path | None:
    """Return where a program with this description is stored; None as by `_find_path`."""
    settings: Any = jax.config
    with _lock:
        is_enabled = settings.jax_enable_compilation_cache or _compiling
    folder = _find_folder() if is_enabled else None
    if folder is None:
        return None
    encoder = Encoder()
    try:
        described = json.dumps(describe(encoder))
    except (TypeError, ValueError):
        return None
    if encoder.functions or '"user.' in described:
        return None
    name = hashlib.sha256("\0".join([described, *_environment()]).encode()).hexdigest()
    return folder / f"{_PREFIX}{name}"


@functools.cache
def _environment() -> tuple[str, ...]:
    """Return all else that a program depends on: versions, the library's sources, the processor, XLA's settings."""
    sources = [(str(path), path.stat()) for path in sorted(_LIBRARY.rglob("*.py"))]
    parts = [f"{path} {about.st_size} {about.st_mtime_ns}" for path, about in sources]
    with contextlib.suppress(OSError):
        parts += [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")][:1]
    parts += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "JAX_"))]
    return (jax.__version__, importlib.metadata.version("jaxlib"), jax.default_backend(), platform.platform(), *parts)


def _write(path: Path, header: dict[str, Any], program: bytes = b"") -> None:
    """Write a file with a checksum, whole or not at all, and remove files that were not read for a month."""
    policy_file.write(path, Contents(_KIND, header, [np.frombuffer(program, np.uint8)]), mode=0o600, durable=False)
    before = time.time() - _UNUSED_SECONDS
    for other in path.parent.glob(f"*{_PREFIX}*"):  # also unfinished ones of killed processes
        with contextlib.suppress(OSError):  # another process was faster
            if other.stat().st_mtime < before:
                other.unlink()


def _read(path: Path) -> Contents | None:
    """Return what a file holds, and mark it as used; None if it is missing, damaged, or not only this user's to write."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or _find_fault(about) is not None:
                return None
            contents = policy_file.unpack(file.read(), _KIND, str(path))
    except (OSError, PolicyFileError):
        return None
    with contextlib.suppress(OSError):  # root's
        os.utime(path)
    return contents


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    global _compiling
    with _lock:
        _compiling += 1
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
    try:
        yield
    finally:
        with _lock:
            _compiling -= 1
            if not _compiling:
                jax.config.update("jax_enable_compilation_cache", True)
                compilation_cache.reset_cache()
