"""Progress without a terminal: lines for cron's mail and a supervisor's log."""

import time

from ecl2o.cli.output import progress_bars, progress_lines


def test_a_line_is_written_every_interval():
    """With stage and share; and for every stage that is finished."""
    written = []
    with progress_lines(written.append, every=0.02) as progress:
        progress("training", 1, 4)
        until = time.monotonic() + 20
        while len(written) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        progress("training", 4, 4)
    assert all(line.startswith("training: 25 % after ") for line in written[:-1])
    assert len(written) >= 3
    assert written[-1].startswith("training: done")


def test_without_a_terminal_progress_lines_go_to_standard_error(capsys):
    with progress_bars() as progress:
        progress("training", 2, 2)
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("training: done")
