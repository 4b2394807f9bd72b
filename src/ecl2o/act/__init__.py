"""One stream through a pipe: lines in, answers out, and a state file that one process holds at a time.

Imports `policy`; knows nothing of options, nor where lines come from.
"""

from ecl2o.act.lines import LineReader, ParsedLine
from ecl2o.act.session import ActSession, Answer, lock_state

__all__ = ["ActSession", "Answer", "LineReader", "ParsedLine", "lock_state"]
