"""`ecl2o evaluate`: a policy file on a series."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecl2o.cli import output, series

if TYPE_CHECKING:
    from ecl2o.data import Contexts
    from ecl2o.evaluation import Bed
    from ecl2o.evaluation.comparison import ScoredEntry
    from ecl2o.serving import Policy

PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="A policy file, written by fit or reproduce.")]


def evaluate(
    policy: PolicyFile,
    data: series.Series,
    days: Annotated[int | None, typer.Option(min=1, help="Only the last so many days. (default: all)")] = None,
    column: series.Columns = None,
    time_column: series.TimeColumn = None,
    fill: series.Fill = None,
    period: series.Period = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    """Test a policy on a series, day after day, beside R-OBD, RHC and the oracle.

    The policy runs as `act` would run it, as one stream; ratios are by day. The first days, as many as the policy remembers, are
    its history and are not counted.
    """
    from ecl2o.cli.numerics import use_double_precision

    use_double_precision()
    from ecl2o.evaluation.comparison import compare, streamed
    from ecl2o.recipes.own_series import reference_entries
    from ecl2o.serving import load

    loaded = load(policy)
    contexts = reading_for(loaded, series.Reading(data, column, time_column, fill, period)).whole()
    bed, first = bed_of(loaded, contexts, days)
    with output.progress_bars(not json) as progress:
        rows = compare(
            {
                "policy": streamed(loaded.agent, loaded.problem, loaded.forecaster),
                **reference_entries(contexts.steps_per_day),
            },
            bed,
            lambda done, total: progress("testing", done, total),
        )
    own, tested = rows[1], bed.days.shape[0]
    if own.not_applicable is not None:
        raise ValueError(f"{policy} cannot be run on {data}: {own.not_applicable}")
    seen = _seen_days(loaded, contexts, first)
    worst = {row.name: str(contexts.time[(first + row.worst_day) * contexts.steps_per_day]) for row in rows}
    if json:
        output.print_json(
            {
                "policy": str(policy),
                "data": str(data),
                "days": tested,
                "history_days": first if days is None else None,
                "days_the_policy_has_seen": seen,
                "rows": {name: row | {"worst_day_starts": worst[name]} for name, row in series.as_json(rows).items()},
            }
        )
    else:
        _print(
            rows,
            f"{tested} days of {data.name}, from {contexts.time[first * contexts.steps_per_day]}",
            policy.name,
            worst,
        )
        if seen:
            rest = tested - seen
            output.results().print(
                f"note: {seen} of these {tested} days were used to train or choose the policy"
                + (f"; --days {rest} tests on the others." if rest else ".")
            )
    if own.promise_kept is False:
        raise typer.Exit(1)


def _print(rows: "list[ScoredEntry]", title: str, name: str, worst: dict[str, str]) -> None:
    labels = {"policy": name, "r-obd": "R-OBD", "rhc": "RHC, rolling profile"}
    series.print_rows(rows, title, labels)
    say, own = output.results().print, rows[1]
    say(f"worst day: the one that begins at {worst['policy']}, {own.competitive_ratio:.3f} times its optimum.")
    promised = series.promise_line(own)
    say("promise: none." if promised is None else promised)


def reading_for(policy: "Policy", reading: series.Reading) -> series.Reading:
    """The columns and the length of day that the policy was made for, unless others are given, and its step."""
    contract = policy.contract
    return dataclasses.replace(
        reading,
        columns=reading.columns or contract.columns,
        period=contract.steps_per_day if reading.period is None else reading.period,
        step_minutes=contract.step_minutes,
    )


def _seen_days(policy: "Policy", contexts: "Contexts", first: int) -> int:
    """How many of the tested days were used in training or choosing, by the clock, if the file is the policy's own."""
    source, until, metadata = policy.contract.source, policy.contract.seen_until, contexts.metadata
    if source is None or until is None or metadata is None or source.sha256 != metadata.sha256:
        return 0
    begins = contexts.time[
        first * contexts.steps_per_day : contexts.n_days * contexts.steps_per_day : contexts.steps_per_day
    ]
    return sum(str(time) <= until for time in begins)


def bed_of(policy: "Policy", contexts: "Contexts", days: int | None) -> "tuple[Bed, int]":
    """The days to test on with what came before them, and the number of the first."""
    from ecl2o.data import DataError
    from ecl2o.evaluation import Bed
    from ecl2o.serving.beginning import start_after

    per_day = contexts.steps_per_day
    remembered = policy.contract.history_steps
    wanted = 7 if remembered is None else -(-remembered // per_day)
    first = min(max(wanted, 1), contexts.n_days - 1)
    if days is not None:
        if days > contexts.n_days - 1:
            raise DataError(
                f"--days must be at most {contexts.n_days - 1}, got {days}: the file has {contexts.n_days} whole days, and a "
                "test needs one before it to start from."
            )
        first = contexts.n_days - days
    used = contexts.values[: contexts.n_days * per_day].reshape(contexts.n_days, per_day, -1)
    kept = 0 if policy.history is None else len(policy.history) // per_day
    history = contexts.values[max(first - max(wanted, kept, 7), 0) * per_day : first * per_day]
    return Bed.of(policy.problem, start_after(policy, history[-1]), used[first:], history), first
