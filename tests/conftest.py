"""Settings that every test shares: double precision, a compilation cache, deterministic hypothesis runs.

In `make test`, tests marked `optimised` run with the compiler as users have it (`make optimised`): XLA_FLAGS and
JAX_DISABLE_MOST_OPTIMIZATIONS are set there, and not changed here. Tests that read the folder of reference data take the
fixture `shared`, and are marked `reference_data` by that.
"""

import gc
import itertools
import os
import sys
from pathlib import Path

# Before JAX is imported: two workers share two cores, and compiled programs are kept for each other, for the processes that tests
# start, and for the next run. Most of the time goes into compiling programs that run once: LLVM's optimisations, the newer code
# generator and what XLA does to make loops faster are more than two thirds of it, and do them no good.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,while-loop-constant-sinking,simplify-while-loops",
)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Of each operator its own line is kept, not the whole stack down to pytest: what it takes is 3 % of the time.
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "0")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(sys.prefix) / ".jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis
import jax
import pytest

jax.config.update("jax_enable_x64", True)
# Commands use no folder that others can write to, as JAX may make it.
Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).mkdir(mode=0o700, parents=True, exist_ok=True)
# Traced programs are many small objects that live long: looking at them often is waste.
gc.set_threshold(2_000_000, 50, 1_000)

hypothesis.settings.register_profile(
    "ecl2o",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("ecl2o")

SHARED = Path(__file__).resolve().parents[2] / "shared"


# Without examples of their own; looking for them stumbles over their common name where folders are given one by one.
collect_ignore_glob = ["**/conftest.py"]

_FIRST = (
    ("tests/service/", "tests/fleet/", "tests/cli/test_interrupts.py"),
    ("tests/paper/", "tests/fitting/"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs reference data, and put first what others wait for: services and clusters, then whole studies and recipes.

    An idle worker steals from the end of the list, and a study cut in two is run twice. What waits for other processes leaves
    a core to `make test`'s other jobs, which run at the beginning.
    """
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker("reference_data")
    items.sort(
        key=lambda item: next((i for i, begins in enumerate(_FIRST) if item.nodeid.startswith(begins)), len(_FIRST))
    )


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end, and need not be looked at again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was not tested for want of reference data. Workers' reports carry their marks, so this counts all of them."""
    skipped = [test for test in terminalreporter.stats.get("skipped", []) if "reference_data" in test.keywords]
    if skipped:
        terminalreporter.section("reference data")
        terminalreporter.line(
            f"{len(skipped)} tests skipped: no real weather, workloads and reference figures at {SHARED}"
        )


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and reference figures beside the project."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED


def _mapped_regions() -> int:
    """How many regions of memory this process has mapped; 0 where the system does not say."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


# Of memory that compiled programs have mapped. Each of them maps nine and keeps 1.6 MB of its sources, which makes every further
# one slower to compile: by a fifth at 10,000 regions. Linux ends a process that maps 65,530.
_MANY_REGIONS, _FAR_TOO_MANY_REGIONS = 6_000, 15_000
_TESTS_BETWEEN_LOOKS = 20  # counting the regions takes as long as a small test
_tests_done = itertools.count(1)


@pytest.fixture(autouse=True)
def forget_far_too_many_programs():
    """Forget compiled programs inside of a file only if there are far too many: its later tests may need them again."""
    yield
    if next(_tests_done) % _TESTS_BETWEEN_LOOKS == 0 and _mapped_regions() > _FAR_TOO_MANY_REGIONS:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def forget_the_programs_of_a_file():
    """Forget compiled programs after a file that leaves many; what other files need as well is read from the disk."""
    yield
    if _mapped_regions() > _MANY_REGIONS:
        jax.clear_caches()
        gc.collect()
