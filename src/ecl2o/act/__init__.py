"""One stream through a pipe: lines in, answers out, a state file that one process holds at a time.

Knows runners, clocks and files; knows nothing of options or of where lines come from.
"""

from ecl2o.act.lines import LineReader, ParsedLine
from ecl2o.act.session import ActSession, Answer, holding

__all__ = ["Answer", "ParsedLine", "LineReader", "ActSession", "holding"]
