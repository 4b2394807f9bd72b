"""One stream through a pipe: lines in, answers out, a state file that one process holds at a time.

Knows runners, clocks and files; knows nothing of options or of where lines come from.
"""

from ecl2o.act.lines import Asked, LineReader
from ecl2o.act.session import Answer, PipedRun, holding

__all__ = ["Answer", "Asked", "LineReader", "PipedRun", "holding"]
