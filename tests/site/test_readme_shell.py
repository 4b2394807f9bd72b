"""The shell of README and of the page on guards, as it stands: from a CSV, or from nothing, to a running service."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.skipif("ECL2O_DOCS" not in os.environ, reason="takes a minute; make docs runs it")


def run_shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's shell in a folder, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", "set -eu\n" + re.sub("870[01]", port, script)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_guard_from_an_empty_folder(tmp_path):
    served, acted, *_ = BLOCK.findall((ROOT / "docs/guard-your-policy.md").read_text(encoding="utf-8"))
    done = run_shell(served + "kill $service\nwait $service || true\n", tmp_path)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 30
    assert "the promise of 2 left no more" in done.stdout
    lines = run_shell(acted, tmp_path).stdout.splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert [answer["change"].partition(" ")[0] for answer in answers] == ["moved", "no"]
    assert float(lines[-2]) == answers[0]["action"][0]


def test_a_guard_of_a_battery_plan(tmp_path):
    (block,) = BLOCK.findall((ROOT / "docs/cases/battery-plan.md").read_text(encoding="utf-8"))
    answers = [json.loads(line) for line in run_shell(block, tmp_path).stdout.splitlines() if line.startswith("{")]
    assert len(answers) == 2
    assert answers[0]["live_ratio"] <= 3 + 1e-9


def test_from_a_csv_to_a_running_service(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(block for block in BLOCK.findall(readme) if "ecl2o serve" in block)
    assert len(block.splitlines()) <= 16
    done = run_shell(block + "wait $service || true\n", tmp_path)
    acted = re.search(r"^\d+\.\d+$", done.stdout, re.MULTILINE)
    assert acted is not None
    assert f'"action":[{acted[0]}]' in done.stdout.replace(" ", "")  # file and service decide alike
    assert "were used to train" not in done.stdout + done.stderr
    assert '"step":1' in done.stdout.replace(" ", "")
    assert (tmp_path / "streams.db").is_file()
