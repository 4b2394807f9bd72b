"""What the shared settings of the tests promise to whoever reads their output."""

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.fixture(scope="module")
def through_another(shared):
    return shared

def test_reads_it(shared): ...

@pytest.mark.parametrize("n", [1, 2])
def test_reads_it_through_another_fixture(through_another, n): ...

def test_does_without(): ...

@pytest.mark.skip(reason="something else")
def test_is_skipped_anyway(): ...
"""


def test_a_run_without_reference_data_says_how_much_it_left_out(tmp_path):
    here = Path(__file__).parent
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    shutil.copy(here / "conftest.py", project / "tests")
    shutil.copy(here.parent / "pyproject.toml", project)
    (project / "tests" / "test_some.py").write_text(TESTS)

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "tests/test_some.py"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = run("-n", "1")
    assert f"3 tests skipped: no real weather, workloads and reference figures at {tmp_path / 'shared'}" in shown
    assert "1 passed, 4 skipped" in shown
    (tmp_path / "shared").mkdir()
    assert "3 passed, 2 deselected" in run("-m", "reference_data")
