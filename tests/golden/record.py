"""Record the trajectories of all cases, or compare them with what is recorded.

python tests/golden/record.py                  write trajectories.npz and refusals.json
python tests/golden/record.py --compare        report what differs, by group; the exit code is 1 if anything does
python tests/golden/record.py --compare TEXT   of the cases whose name contains the text

Runs with the compiler settings of the tests, so that equal programs give equal bits.
"""

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Record or compare, and return the exit code."""
    import conftest  # noqa: F401  # before JAX
    from golden import builders, trajectories
    from golden.cases import CASES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", nargs="?", const="", metavar="TEXT")
    wanted = parser.parse_args().compare
    begun, runs = time.process_time(), {}
    for case in CASES:
        if wanted is None or wanted in case.name:
            try:
                runs[case] = builders.play(case)
            except Exception as error:
                if wanted is None:
                    raise
                runs[case] = error
    print(
        f"{len(runs)} cases of {len({case.group for case in runs})} groups in {time.process_time() - begun:.0f} CPU s"
    )
    if wanted is None:
        trajectories.save({case.name: run for case, run in runs.items()})
        print(f"{trajectories.FILE}: {trajectories.FILE.stat().st_size / 1e6:.2f} MB")
        return 0
    recorded, equal, close, far = trajectories.load(), 0, 0.0, defaultdict(list)
    for case, run in runs.items():
        if isinstance(run, Exception):
            far[case.group].append(f"{case.label}: {type(run).__name__}: {run}")
            continue
        found = trajectories.differences(case, recorded[case.name], run)
        worst = max(found, key=found.get)
        equal += found[worst] == 0
        if found[worst] <= trajectories.TOLERANCE[case.dtype]:
            close = max(close, found[worst])
        else:
            figures = ", ".join(f"{name} {value:.1e}" for name, value in found.items() if value)
            far[case.group].append(f"{case.label}: {figures}")
    count = sum(map(len, far.values()))
    print(
        f"{equal} bit for bit, {len(runs) - equal - count} within the tolerance (largest {close:.1e}), {count} beyond"
    )
    for group, lines in sorted(far.items()):
        print(f"\n{group}", *lines, sep="\n  ")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
