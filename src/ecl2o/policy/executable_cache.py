"""The cache of compiled programs on disk, so that a process that makes a single step need not trace or compile.

JAX's cache saves compilation only. Where it has a folder (`jax_compilation_cache_dir`, which `use_cache_folder` sets), the
functions of a run are stored beside it, ready to be called.

A file is for one structure and one set of sizes, not for a policy's numbers, and for the library, versions and processor that
made it. It is checked when it is read, and made again if it does not fit. Files that were not read for a month are removed
when the next one is written. Like JAX's own cache it holds machine code: only trusted users may write to the folder.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from ecl2o.policy.policy_file import Encoder
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import CompiledStepper, RunShape, Spec, StepFunctions, compile_stepper

_DIGEST = hashlib.sha256
_LENGTH = 8  # bytes that say how long a part is
_LIBRARY = Path(__file__).parents[1]
_PREFIX = "ecl2o-run-"
_UNUSED_SECONDS = 30 * 24 * 3600.0

_MOST_PROGRAMS = 64
_programs: dict[Path, CompiledStepper] = {}  # of this process, one for each structure and set of sizes


def use_cache_folder() -> None:
    """Let JAX and runners store compiled programs in the user's cache folder, ~/.cache/ecl2o/programs.

    A folder that JAX has, from its configuration or from JAX_COMPILATION_CACHE_DIR (empty: none), is left as it is.
    """
    settings: Any = jax.config
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ and settings.jax_compilation_cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(base) / "ecl2o" / "programs"
        with contextlib.suppress(OSError):  # a service without a home compiles every time
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                jax.config.update("jax_compilation_cache_dir", str(folder))
    if settings.jax_compilation_cache_dir:
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def compile_cached(stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> tuple[CompiledStepper, list[Any]]:
    """Return what `compile_stepper` does, with the functions of one stream from the cache; the others are traced on use."""
    arrays = [leaf for leaf in jax.tree.leaves(stepper) if isinstance(leaf, jax.Array | np.ndarray)]
    path = _find_path(stepper, arrays, sizes, dtype)
    if path is None:
        return compile_stepper(stepper, sizes, dtype)
    if path not in _programs:
        while len(_programs) >= _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
        _programs[path] = _load_program(path, stepper, sizes, dtype)
    return _programs[path], arrays


def _load_program(path: Path, stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> CompiledStepper:
    @functools.cache
    def traced() -> CompiledStepper:
        return compile_stepper(stepper, sizes, dtype)[0]

    def cached(name: str) -> Callable[..., Any]:
        return _CachedExecutable(path.with_name(f"{path.name}-{name}"), lambda: getattr(traced().one, name))

    def trace_on_use(name: str) -> Callable[..., Any]:
        return lambda *arguments: getattr(traced().one, name)(*arguments)

    one = StepFunctions(
        begin=cached("begin"),
        share=cached("share"),
        advance=cached("advance"),
        inspect=trace_on_use("inspect"),
        play=trace_on_use("play"),
        figures=cached("figures"),
    )
    return CompiledStepper(one, _load_carried(path, traced), lambda axis: traced().streams(axis))


class _CachedExecutable:
    """A function of arrays; its first call reads it from its file, or compiles it and writes it there."""

    def __init__(self, path: Path, find: Callable[[], Any]):
        self._path, self._find, self._run = path, find, None

    def __call__(self, *arguments: Any) -> Any:
        if self._run is not None:
            return self._run(*arguments)
        try:
            found = self._read(arguments)
            if found is not None:
                result = found(*arguments)
                self._run = found
                return result
        except Exception:  # a program of another build may fail in any way: make it again
            pass
        self._run = self._make(arguments)
        return self._run(*arguments)

    def _read(self, arguments: Any) -> Callable[..., Any] | None:
        parts = _read(self._path)
        if parts is None:
            return None
        results, program = parts
        taken, given = jax.tree.structure((arguments, {})), jax.tree.structure(_as_tuples(json.loads(results)))
        return serialize_executable.deserialize_and_load(program, taken, given)

    def _make(self, arguments: Any) -> Callable[..., Any]:
        lowered = self._find().lower(*arguments)
        with _without_jax_cache():  # a program from JAX's cache cannot be serialized
            made = lowered.compile()
        results = json.dumps(jax.tree.map(lambda _: 0, lowered.out_info))
        with contextlib.suppress(OSError, ValueError, NotImplementedError):
            _write(self._path, [results.encode(), serialize_executable.serialize(made)[0]])
        return made


def _as_tuples(nested: Any) -> Any:
    """Turn lists back into tuples."""
    if isinstance(nested, dict):
        return {name: _as_tuples(each) for name, each in nested.items()}
    return tuple(map(_as_tuples, nested)) if isinstance(nested, list) else nested


def _load_carried(path: Path, traced: Callable[[], CompiledStepper]) -> tuple[Spec, ...]:
    parts = _read(path)
    if parts is not None:
        return tuple(Spec(tuple(shape), dtype) for shape, dtype in json.loads(parts[0]))
    carried = traced().carried
    with contextlib.suppress(OSError):
        _write(path, [json.dumps([[list(spec.shape), str(spec.dtype)] for spec in carried]).encode()])
    return carried


def _find_path(stepper: Stepper, arrays: Sequence[Any], sizes: RunShape, dtype: np.dtype) -> Path | None:
    """Return where its programs are stored; None without a folder, or if it has code that is not this library's."""
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    if not folder or not settings.jax_enable_compilation_cache:
        return None
    encoder = Encoder()
    try:
        parts = [encoder.encode(part, "it") for part in (stepper.agent, stepper.problem, stepper.forecaster)]
    except (TypeError, ValueError):
        return None
    described = json.dumps([parts, stepper.screen is not None, dataclasses.astuple(sizes), str(dtype)])
    if encoder.functions or '"user.' in described:
        return None
    shapes = json.dumps([[list(array.shape), str(array.dtype)] for array in arrays])
    name = _DIGEST("\0".join([described, shapes, *_environment()]).encode()).hexdigest()
    return Path(folder) / f"{_PREFIX}{name}"


@functools.cache
def _environment() -> tuple[str, ...]:
    """Return all else that a program depends on: versions, the library's sources, the processor, XLA's settings."""
    sources = [(str(path), path.stat()) for path in sorted(_LIBRARY.rglob("*.py"))]
    parts = [f"{path} {about.st_size} {about.st_mtime_ns}" for path, about in sources]
    with contextlib.suppress(OSError):
        parts += [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")][:1]
    parts += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "JAX_"))]
    return (jax.__version__, importlib.metadata.version("jaxlib"), jax.default_backend(), platform.platform(), *parts)


def _write(path: Path, parts: Sequence[bytes]) -> None:
    """Write parts with a checksum, whole or not at all."""
    body = b"".join(len(part).to_bytes(_LENGTH, "little") + part for part in parts)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            file.write(_DIGEST(body).digest() + body)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
    _remove_unused(path.parent)


def _remove_unused(folder: Path) -> None:
    """Remove files that were not read for a month, also unfinished ones of killed processes."""
    before = time.time() - _UNUSED_SECONDS
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process was faster
            if path.stat().st_mtime < before:
                path.unlink()


def _read(path: Path) -> list[bytes] | None:
    """Return the parts of a file, and mark it as used; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # of another user
        os.utime(path)
    size = _DIGEST().digest_size
    checksum, body = content[:size], content[size:]
    if _DIGEST(body).digest() != checksum:
        return None
    parts = []
    while body:
        length = int.from_bytes(body[:_LENGTH], "little")
        parts.append(body[_LENGTH : _LENGTH + length])
        body = body[_LENGTH + length :]
    return parts


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
