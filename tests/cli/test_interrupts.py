"""Ctrl-C and SIGTERM end a command within moments: one line, exit code 130, nothing left behind."""

import subprocess
import sys
import threading
import time

import pytest

from ecl2o.paper.case_study import Job, run_jobs

# Who runs tests in the background of a script ignores interrupts, and so would every process below it.
LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

# A process that sends itself a signal while it does what a command may be doing; `{what}` is that.
PROCESS = """
import os, signal, sys, tempfile, threading, time
from ecl2o.cli.interrupts import run_interruptible, use_default_sigterm

def strike():
    threading.Timer(0.3, os.kill, [os.getpid(), signal.{name}]).start()

def command():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        strike()
        {what}
    print("went on")

run_interruptible(command)
"""
LONG = "time.sleep(30)"
THREADS = "threading.Thread(target=time.sleep, args=(30,)).start(); time.sleep(30)"
TURNED = """
        try: time.sleep(30)
        except KeyboardInterrupt as error: raise ImportError("initialization failed") from error"""
SWALLOWED = """
        try: time.sleep(30)
        except KeyboardInterrupt: pass
        time.sleep(30)"""
COLLECTING = """
        class Rubbish:
            def __del__(self): time.sleep(1)
        Rubbish()
        time.sleep(30)"""
TWICE = """
        try: time.sleep(30)
        finally: os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1)"""


def ended(what: str, folder, name: str = "SIGINT") -> subprocess.CompletedProcess[str]:
    script = LISTENING + PROCESS.replace("{what}", what).replace("{name}", name)
    return subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize(
    "what",
    [LONG, THREADS, TURNED, SWALLOWED, COLLECTING, TWICE],
    ids=["long", "threads", "turned into another", "swallowed", "collecting", "twice"],
)
def test_an_interrupt_is_a_line_and_leaves_nothing(tmp_path, what):
    found = ended(what, tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "ecl2o: interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_an_import_is_finished_first(tmp_path):
    """A module in C that is interrupted on its way may end the process, or be left half made."""
    modules, place = tmp_path / "modules", tmp_path / "place"
    modules.mkdir(), place.mkdir()
    (modules / "slow.py").write_text("import time; time.sleep(1); print('made', flush=True)")
    found = ended(f"sys.path.insert(0, {str(modules)!r}); import slow; time.sleep(30)", place)
    assert (found.returncode, found.stdout, found.stderr) == (130, "made\n", "ecl2o: interrupted.\n")
    assert list(place.iterdir()) == []


def test_termination_is_an_interrupt(tmp_path):
    found = ended(LONG, tmp_path, "SIGTERM")
    assert (found.returncode, found.stderr) == (130, "ecl2o: interrupted.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_supervised_command_is_ended_by_the_system(tmp_path):
    assert ended("use_default_sigterm(); time.sleep(30)", tmp_path, "SIGTERM").returncode == -15


def test_what_ignores_interrupts_goes_on_ignoring_them(tmp_path):
    """As in the background of a script, where Ctrl-C is meant for others."""
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + PROCESS
    script = ignoring.replace("{what}", "time.sleep(1)").replace("{name}", "SIGINT")
    found = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=20)
    assert (found.returncode, found.stdout) == (0, "went on\n")


def test_other_failures_keep_their_traceback(tmp_path):
    found = ended("raise LookupError('a bug')", tmp_path, "SIGWINCH")
    assert found.returncode == 1
    assert "LookupError: a bug" in found.stderr


@pytest.mark.parametrize("moment", [0.2, 0.5, 1.0])
def test_a_command_that_is_still_importing_is_interrupted_in_a_line(tmp_path, moment):
    script = f"""
import os, signal, threading
from ecl2o.cli import main
threading.Timer({moment}, os.kill, [os.getpid(), signal.SIGINT]).start()
main()
"""
    options = ["reproduce", "--quick", "--out", str(tmp_path / "report")]
    command = [sys.executable, "-c", LISTENING + script, *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr.splitlines()[-1]) == (130, "ecl2o: interrupted.")
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_does_not_wait_for_jobs_that_run():
    release, working = threading.Event(), threading.Event()

    def work(report):
        working.set()
        release.wait(30)

    def interrupted(report):
        working.wait(30)
        raise KeyboardInterrupt  # as where a job is waited for

    started, late = time.monotonic(), []
    jobs = [Job("interrupted", interrupted), Job("long", work), Job("late", late.append)]
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, lambda *_: None, workers=2)
    release.set()
    assert time.monotonic() - started < 10
    assert len(late) <= 1  # started by a thread that was free already
