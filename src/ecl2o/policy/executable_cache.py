"""The programs of a run, kept on disk for the next process.

A process that is started for a single step traces and lowers the same programs every time, which takes longer than everything
else it does. JAX's cache spares it the compilation alone. So where JAX is told to keep compiled programs
(`jax_compilation_cache_dir`), those that a run needs are kept beside them, ready to be called.

A file is for one structure and one set of sizes, not for the numbers of a policy, and for the very library, versions and
processor that made it: anything else has another name. It is checked when it is read; one that does not fit is made again. What
nobody has read for a month, such as the programs of an earlier version, is removed when the next one is written. Like JAX's own
cache it holds machine code, so whoever can write to that folder decides what is run.
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


def pack_cached(stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> tuple[CompiledStepper, list[Any]]:
    """`compile_stepper`, with the functions of one stream from the cache on disk; the others are traced on use."""
    arrays = [leaf for leaf in jax.tree.leaves(stepper) if isinstance(leaf, jax.Array | np.ndarray)]
    place = _place(stepper, arrays, sizes, dtype)
    if place is None:
        return compile_stepper(stepper, sizes, dtype)
    if place not in _programs:
        while len(_programs) >= _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
        _programs[place] = _program(place, stepper, sizes, dtype)
    return _programs[place], arrays


def _program(place: Path, stepper: Stepper, sizes: RunShape, dtype: np.dtype) -> CompiledStepper:
    @functools.cache
    def traced() -> CompiledStepper:
        return compile_stepper(stepper, sizes, dtype)[0]

    def kept(name: str) -> Callable[..., Any]:
        return _CachedExecutable(place.with_name(f"{place.name}-{name}"), lambda: getattr(traced().one, name))

    def later(name: str) -> Callable[..., Any]:
        return lambda *arguments: getattr(traced().one, name)(*arguments)

    one = StepFunctions(
        begin=kept("begin"),
        share=kept("share"),
        advance=kept("advance"),
        inspect=later("inspect"),
        play=later("play"),
        figures=kept("figures"),
    )
    return CompiledStepper(one, _carried(place, traced), lambda axis: traced().streams(axis))


class _CachedExecutable:
    """A function of arrays that is read from its file when it is first called, or compiled and written there."""

    def __init__(self, path: Path, find: Callable[[], Any]):
        self._path, self._find, self._run = path, find, None

    def __call__(self, *arguments: Any) -> Any:
        if self._run is not None:
            return self._run(*arguments)
        try:
            kept = self._read(arguments)
            if kept is not None:
                answer = kept(*arguments)
                self._run = kept
                return answer
        except Exception:  # whatever a program of another build leads to: it is made again, and fails again if it must
            pass
        self._run = self._make(arguments)
        return self._run(*arguments)

    def _read(self, arguments: Any) -> Callable[..., Any] | None:
        parts = _read(self._path)
        if parts is None:
            return None
        results, program = parts
        taken, given = jax.tree.structure((arguments, {})), jax.tree.structure(_tuples(json.loads(results)))
        return serialize_executable.deserialize_and_load(program, taken, given)

    def _make(self, arguments: Any) -> Callable[..., Any]:
        lowered = self._find().lower(*arguments)
        with _without_cache():  # what was read from JAX's cache cannot be written again
            made = lowered.compile()
        results = json.dumps(jax.tree.map(lambda _: 0, lowered.out_info))
        with contextlib.suppress(OSError, ValueError, NotImplementedError):
            _write(self._path, [results.encode(), serialize_executable.serialize(made)[0]])
        return made


def _tuples(nested: Any) -> Any:
    """JSON as it was before: there were no lists."""
    if isinstance(nested, dict):
        return {name: _tuples(each) for name, each in nested.items()}
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested


def _carried(place: Path, traced: Callable[[], CompiledStepper]) -> tuple[Spec, ...]:
    """The vectors that a run carries."""
    parts = _read(place)
    if parts is not None:
        return tuple(Spec(tuple(shape), dtype) for shape, dtype in json.loads(parts[0]))
    carried = traced().carried
    with contextlib.suppress(OSError):
        _write(place, [json.dumps([[list(spec.shape), str(spec.dtype)] for spec in carried]).encode()])
    return carried


def _place(stepper: Stepper, arrays: Sequence[Any], sizes: RunShape, dtype: np.dtype) -> Path | None:
    """Where its programs are kept; None where nothing is, or code is in it that is not this library's."""
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
    name = _DIGEST("\0".join([described, shapes, *_surroundings()]).encode()).hexdigest()
    return Path(folder) / f"{_PREFIX}{name}"


@functools.cache
def _surroundings() -> tuple[str, ...]:
    """All else that decides what a program is: versions, the library's sources, the processor, settings of XLA."""
    sources = [(str(path), path.stat()) for path in sorted(_LIBRARY.rglob("*.py"))]
    told = [f"{path} {about.st_size} {about.st_mtime_ns}" for path, about in sources]
    with contextlib.suppress(OSError):
        told += [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")][:1]
    told += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("XLA_", "JAX_"))]
    return (jax.__version__, importlib.metadata.version("jaxlib"), jax.default_backend(), platform.platform(), *told)


def _write(path: Path, parts: Sequence[bytes]) -> None:
    """Whole or not at all, with a checksum."""
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
    """Remove the files that have not been read for a month, and what a killed process left unfinished that long ago."""
    before = time.time() - _UNUSED_SECONDS
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process was faster
            if path.stat().st_mtime < before:
                path.unlink()


def _read(path: Path) -> list[bytes] | None:
    """What was written; None where there is nothing, or something else. Its time becomes that of its last use."""
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
def _without_cache() -> Iterator[None]:
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()
