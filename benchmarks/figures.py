"""Whether a change of the code has changed a figure: the studies' results before and after, compared to 1e-9.

`collect` runs the commands behind docs/reproduction.md and docs/frontier.md in one process, with little training (real days,
real weather, two seeds, 300 steps), and writes every number of their results.json into one file. It uses the command line only,
so that it runs on older commits too. `compare` lists the rows whose numbers differ, and ends with 1 if any does.

    .venv/bin/python benchmarks/figures.py collect before.json --weather-files FOLDER     # on the old commit
    .venv/bin/python benchmarks/figures.py collect after.json --weather-files FOLDER      # on the new one
    .venv/bin/python benchmarks/figures.py compare before.json after.json [--meant guarded --meant ridge]

FOLDER holds the NSRDB files of docs/reproduction.md and the web requests of docs/frontier.md. `--meant` names rows that were
changed on purpose: their differences are shown, and do not count. Both files must come from one machine and one version of JAX.
"""

import argparse
import fnmatch
import importlib.metadata
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 1e-9  # relative

# What is run: a name, and the arguments, with FOLDER/ for the folder of files.
RIVERSIDE = ["--weather", "FOLDER/nsrdb_riverside_2015.csv"]
BAKERSFIELD = ["--weather", "FOLDER/nsrdb_bakersfield_2012.csv", "--base-shortage", "auto"]
GOLDEN = ["--weather", "FOLDER/nsrdb_golden_2012.csv", "--base-shortage", "auto"]
REPRODUCE, FRONTIER = ["reproduce", "--quick", "--seeds", "2"], ["frontier", "--quick"]
COMMANDS = {
    "reproduce riverside": [*REPRODUCE, *RIVERSIDE],
    "reproduce riverside mlp": [*REPRODUCE, "--network", "mlp", *RIVERSIDE],
    "reproduce bakersfield": [*REPRODUCE, *BAKERSFIELD],
    "reproduce golden": [*REPRODUCE, *GOLDEN],
    "reproduce built-in": REPRODUCE,
    "frontier riverside": [*FRONTIER, *RIVERSIDE],
    "frontier bakersfield": [*FRONTIER, *BAKERSFIELD],
    "frontier golden": [*FRONTIER, *GOLDEN],
    "frontier built-in": FRONTIER,
    "frontier web requests": [
        *("frontier", "FOLDER/web_requests_nasa_1995_hourly.csv", "--fill", "interpolate"),
        *("--training-days", "30", "--validation-days", "8", "--quick"),
    ],
}

# Neither a result (how long it took, where files lie) nor a figure of its own (the spread over seeds follows from the seeds').
_LEFT_OUT = ("seconds", "settings", "weather", "source", "format", "std")

Figures = dict[str, float]  # by path: "algorithms/r-obd/average_cost/mean"


def collect(out: Path, folder: Path, only: Sequence[str]) -> None:
    """Run the commands, and write all their figures."""
    found: dict[str, Figures] = {}
    seconds: dict[str, float] = {}
    for name, arguments in COMMANDS.items():
        if only and not any(fnmatch.fnmatch(name, pattern) for pattern in only):
            continue
        started = time.process_time()
        found[name] = dict(figures(_results([word.replace("FOLDER", str(folder)) for word in arguments])))
        seconds[name] = round(time.process_time() - started, 1)
        print(f"{name}: {len(found[name])} figures in {seconds[name]:.0f} CPU seconds", file=sys.stderr)
    about = {package: importlib.metadata.version(package) for package in ("jax", "jaxlib", "numpy")}
    out.write_text(json.dumps({"versions": about, "cpu_seconds": seconds, "figures": found}, indent=1) + "\n")
    print(f"{sum(map(len, found.values()))} figures in {sum(seconds.values()):.0f} CPU seconds: {out}")


def _results(arguments: Sequence[str]) -> dict[str, Any]:
    """The results.json that a command leaves."""
    from ecl2o.cli import main

    with tempfile.TemporaryDirectory() as place:
        out = Path(place, "out")
        sys.argv = ["ecl2o", *arguments, "--out", str(out)]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"ecl2o {' '.join(arguments)} ended with {end.code}") from None
        return json.loads((out / "results.json").read_text(encoding="utf-8"))


def figures(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a tree of JSON with its path; entries of a list go by their names, where they have any."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key not in _LEFT_OUT:
                yield from figures(value, f"{path}/{key}" if path else key)
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from figures(value, f"{path}/{_name(value, place)}")
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree
    elif tree in ("inf", "-inf", "nan"):
        yield path, float(tree)


def _name(entry: Any, place: int) -> str:
    """What an entry of a list is called: its family and setting or label, else its place."""
    if not isinstance(entry, dict) or "family" not in entry:
        return str(place)
    return f"{entry['family']} {entry.get('setting', entry.get('label', ''))}".strip()


def compare(before: Path, after: Path, meant: Sequence[str]) -> bool:
    """Print what differs; whether everything agrees that was not meant to change."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    if old["versions"] != new["versions"]:
        print(f"note: made with different versions, {old['versions']} and {new['versions']}")
    good, count = True, 0
    for command in old["figures"] | new["figures"]:
        if command not in old["figures"] or command not in new["figures"]:
            print(f"{command}: in one file only")
            good = False
            continue
        was, now = old["figures"][command], new["figures"][command]
        worst: dict[str, float] = {}
        for path, value in was.items():
            row = _row(path)
            worst[row] = max(worst.get(row, 0.0), difference(value, now.get(path)))
            count += 1
        for row, apart in worst.items():
            wanted = any(name in row for name in meant)
            if apart > TOLERANCE:
                good = good and wanted
                lost = "a figure is gone" if apart == math.inf else f"differs by {apart:.1e}"
                print(f"{command}: {row} {lost}{' (meant)' if wanted else ''}")
        fresh = sorted({_row(path) for path in now if path not in was})
        if fresh:
            print(f"{command}: new figures in {', '.join(fresh)}")
    print(f"{count} figures compared: {'all agree' if good else 'NOT the same'} to {TOLERANCE:g}")
    return good


def _row(path: str) -> str:
    """The row that a figure belongs to: the first two parts of its path."""
    return "/".join(path.split("/")[:2])


def difference(was: float, now: float | None) -> float:
    """The relative difference; infinite where the figure is gone, or is no longer a finite one."""
    if now is None:
        return math.inf
    if was == now or (math.isnan(was) and math.isnan(now)):
        return 0.0
    apart = abs(was - now) / max(abs(was), abs(now))
    return apart if math.isfinite(apart) else math.inf


def main() -> int:
    """Collect or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="run the studies and write their figures")
    collecting.add_argument("out", type=Path)
    collecting.add_argument("--weather-files", type=Path, required=True, metavar="FOLDER")
    collecting.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="e.g. 'frontier *'; may be repeated"
    )
    comparing = commands.add_parser("compare", help="compare two files of figures")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--meant", action="append", default=[], metavar="ROW", help="a row that may differ; may be repeated"
    )
    given = parser.parse_args()
    if given.command == "collect":
        collect(given.out, given.weather_files, given.only)
        return 0
    return 0 if compare(given.before, given.after, given.meant) else 1


if __name__ == "__main__":
    sys.exit(main())
