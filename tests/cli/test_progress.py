"""Progress where nobody looks at a terminal: cron's mail and a supervisor's log."""

import time

from ecl2o.cli.output import _lines, progress_bars


def test_a_line_comes_every_so_often_whether_or_not_there_is_news():
    """With stage and share; and for every stage that is finished."""
    told = []
    with _lines(told.append, every=0.02) as progress:
        progress("training", 1, 4)
        until = time.monotonic() + 20
        while len(told) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        progress("training", 4, 4)
    assert all(line.startswith("training: 25 % after ") for line in told[:-1])
    assert len(told) >= 3
    assert told[-1].startswith("training: done")


def test_without_a_terminal_lines_go_to_standard_error(capsys):
    with progress_bars() as progress:
        progress("training", 2, 2)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("training: done")
