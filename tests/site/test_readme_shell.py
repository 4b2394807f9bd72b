"""The README's shell, as it stands: from a CSV to a running service."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.skipif("ECL2O_DOCS" not in os.environ, reason="takes a minute; make docs runs it")


def test_from_a_csv_to_a_running_service(tmp_path):
    block = next(block for block in BLOCK.findall(README.read_text(encoding="utf-8")) if "ecl2o serve" in block)
    assert len(block.splitlines()) <= 16
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = "set -eu\n" + block.replace("8700", port) + "wait $service || true\n"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    acted = re.search(r"^\d+\.\d+$", done.stdout, re.MULTILINE)
    assert acted is not None
    assert f'"action":[{acted[0]}]' in done.stdout.replace(" ", "")  # file and service decide alike
    assert "were used to train" not in done.stdout + done.stderr
    assert '"step":1' in done.stdout.replace(" ", "")
    assert (tmp_path / "streams.db").is_file()
