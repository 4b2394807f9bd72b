"""`ecl2o serve` and `ecl2o demo`: rejected arguments, and a whole demonstration."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from ecl2o.cli.commands import app


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch, tmp_path):
    monkeypatch.delenv("ECL2O_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--host", "0.0.0.0"], "ECL2O_TOKEN"),
        (["serve", "missing.ecl2o"], "missing.ecl2o"),
        (["serve", "--port", "70000"], "port"),
        (["serve", "--port", "0", "--store", "sqlite://"], "sqlite:///streams.db"),
        (["demo", "--speed", "0"], "0.1"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, named, tmp_path):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert named in result.output + str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_policy_ends_the_command_before_anything_is_served(tmp_path):
    (tmp_path / "bad.ecl2o").write_bytes(b"no policy")
    result = CliRunner().invoke(app, ["serve", "bad.ecl2o", "--port", "0", "--store", f"sqlite:///{tmp_path}/s.db"])
    assert result.exit_code == 1
    assert "bad: Not a valid policy" in result.output + str(result.exception)
    assert "serving" not in result.output


def test_two_policies_of_one_name_are_rejected(tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.ecl2o").write_bytes(b"")
    result = CliRunner().invoke(app, ["serve", "one/same.ecl2o", "other/same.ecl2o"])
    assert result.exit_code == 2
    assert "POLICIES" in result.output


def test_the_demo_shows_steps_until_it_is_interrupted(tmp_path):
    """In its own process: a free port, the page, steps that arrive, Ctrl-C while the page is open."""
    command = [str(Path(sys.executable).with_name("ecl2o")), "demo", "--speed", "50"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process, contextlib.ExitStack() as stack:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            url = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert url is not None
            with httpx2.Client(base_url=url[0], timeout=60) as client:
                page = client.get("/")
                assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
                assert "No streams yet" not in page.text  # streams exist before the address is printed
                seen = set()
                for _ in range(600):
                    streams = client.get("/streams").json()["streams"]
                    seen |= {stream["steps"] for stream in streams}
                    if len(streams) == 5 and min(stream["steps"] for stream in streams) >= 24:
                        break
                    time.sleep(0.1)
                assert len(seen) > 3  # steps arrive one after the other
                promised = client.get("/streams/site-summer/steps").json()
                assert all(step["live_ratio"] <= 2.5 * (1 + 1e-9) for step in promised[:24])
                assert "site-summer" in client.get("/").text
                assert client.get("/watch/site-summer").status_code == 200
            browser = stack.enter_context(httpx2.Client(base_url=url[0], timeout=60))
            events = stack.enter_context(browser.stream("GET", "/events")).iter_lines()
            assert next(events).startswith("retry")
        finally:
            process.send_signal(signal.SIGINT)
        assert all("Traceback" not in line for line in events)  # the stream ends regularly
        assert process.wait(60) == 0
        assert len(process.stderr.read().splitlines()) == 1  # that the demo is being prepared
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
