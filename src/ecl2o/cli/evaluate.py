"""`ecl2o evaluate`: a policy file on a series."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ecl2o.cli import comparison_table, options, output

if TYPE_CHECKING:
    from ecl2o.evaluation.comparison import ComparisonRow
    from ecl2o.problem import Problem


def evaluate(
    policy: options.PolicyFile,
    data: options.Series,
    days: Annotated[int | None, typer.Option(min=1, help="Only the last so many days. (default: all)")] = None,
    column: options.Columns = None,
    weight_column: options.WeightColumn = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    period: options.Period = None,
    bounds: options.Limits = None,
    day_start: options.DayStart = None,
    unit_cost: options.UnitCost = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    """Test a policy on a series, day after day, beside R-OBD, RHC and the oracle.

    The policy runs as `act` would run it, as one stream; ratios are by day. The first days, as many as the policy remembers, are
    its history and are not counted.
    """
    limits = None if bounds is None else options.parse_interval(bounds, "--bounds")
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    from ecl2o.evaluation.comparison import compare, make_contender
    from ecl2o.fitting.cost_summary import CostSummary
    from ecl2o.fitting.pipeline import reference_contenders
    from ecl2o.fitting.screen import screen_series
    from ecl2o.fitting.test_days import count_seen_days, policy_test_days
    from ecl2o.policy import load
    from ecl2o.policy.policy import with_action_limits
    from ecl2o.policy.start_run import check_memory

    loaded = load(policy) if limits is None else with_action_limits(load(policy), *limits)
    check_memory(loaded, str(policy))
    contexts = (
        options.make_reader(data, column, time_column, fill, period, day_start, weight_column).made_for(loaded).whole()
    )
    contexts, replaced = screen_series(contexts, loaded.contract.screen)
    bed, first = policy_test_days(loaded, contexts, days)
    with output.progress_bars(not json) as progress:
        rows = compare(
            {
                "policy": make_contender(loaded.agent, loaded.problem, loaded.forecaster),
                **reference_contenders(loaded.problem, contexts.steps_per_day),
            },
            bed,
            lambda done, total: progress("testing", done, total),
            timed=True,
        )
    own, tested = next(row for row in rows if row.name == "policy"), bed.days.shape[0]
    bills = CostSummary.of(own, unit_cost)
    if own.not_applicable is not None:
        raise ValueError(f"{policy} cannot be run on {data}: {own.not_applicable}")
    seen = count_seen_days(loaded, contexts, first)
    worst = {row.name: str(contexts.time[(first + row.worst_day) * contexts.steps_per_day]) for row in rows}
    if json:
        output.print_json(
            {
                "policy": str(policy),
                "data": str(data),
                "days": tested,
                "history_days": first if days is None else None,
                "days_the_policy_has_seen": seen,
                "screened": len(replaced),
                "bills": dataclasses.asdict(bills),
                "rows": {
                    name: row | {"worst_day_starts": worst[name]}
                    for name, row in comparison_table.as_json(rows).items()
                },
            }
        )
    else:
        _print(
            rows,
            f"{tested} day{'s' if tested > 1 else ''} of {data.name}, from {contexts.time[first * contexts.steps_per_day]}",
            policy.name,
            worst[own.name],
            loaded.problem,
            unit_cost,
        )
        output.results().print(bills.in_words(loaded.contract.period_name, loaded.problem), soft_wrap=True)
        if days is None and first:
            output.results().print(
                f"the first {first} day{'s are' if first > 1 else ' is'} what the policy begins on, and not counted; "
                "--days says otherwise.",
                soft_wrap=True,
            )
        if seen:
            rest = tested - seen
            output.results().print(
                f"note: {seen} of these {tested} days were used to train or choose the policy"
                + (f"; --days {rest} tests on the others." if rest else ".")
            )
    options.report_replaced(data, contexts.time, replaced)
    if own.promise_kept is False:
        raise typer.Exit(1)


def _print(
    rows: "list[ComparisonRow]", title: str, name: str, worst: str, problem: "Problem", unit_cost: float | None
) -> None:
    labels = {"policy": name, "daily-oracle": "daily oracle", "r-obd": "R-OBD", "rhc": "RHC, rolling profile"}
    labels |= {"guarded-rhc": "RHC, guarded"}
    comparison_table.print_entries(rows, title, labels, problem, unit_cost, after=comparison_table.live_columns(rows))
    say, own = output.results().print, next(row for row in rows if row.name == "policy")
    say(f"worst day: the one that begins at {worst}, {own.competitive_ratio:.3f} times its optimum.")
    promised = comparison_table.promise_line(own)
    say("promise: none." if promised is None else promised)
