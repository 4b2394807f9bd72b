"""`ecl2o evaluate`: test a policy file on a series."""

import dataclasses

import typer

from ecl2o.cli import comparison_table, options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs


@options.expand_options()
def evaluate(
    policy: options.PolicyFile,
    data: options.Series,
    *,
    days: int | None = options.DAYS,
    reading: options.ReadingOptions,
    bounds: str | None = options.BOUNDS,
    unit_cost: float | None = options.UNIT_COST,
    json: output.Json = False,
) -> None:
    """Test a policy on a series, day after day, next to R-OBD, RHC and the oracle.

    The policy runs as in `act`, as one stream; ratios are per day. The first days, as many as the policy remembers, are its
    history and do not count. A guard of advice is shown next to the advice alone. Exit code 1 if a promise was broken.
    """
    limits = options.parse_interval(bounds, "--bounds")
    use_cached_programs()
    from ecl2o.agents import Advised
    from ecl2o.evaluation.comparison import compare, make_contender
    from ecl2o.fitting.candidates import FORECAST_DAYS, reference_contenders
    from ecl2o.fitting.named_agents import row_name
    from ecl2o.fitting.read import hold_advice, screen_series
    from ecl2o.fitting.tasks import count_seen_days, policy_test_days
    from ecl2o.policy import load
    from ecl2o.policy.policy import with_action_limits
    from ecl2o.policy.start_run import check_memory

    loaded = load(policy) if limits is None else with_action_limits(load(policy), *limits)
    check_memory(loaded, str(policy))
    reader = reading.make_reader(data).for_policy(loaded)
    contexts, replaced = screen_series(reader.read_days(), loaded.contract.screen)
    contexts = hold_advice(contexts, len(loaded.contract.advice))
    test_days, first = policy_test_days(loaded, contexts, days)
    name = row_name(loaded, policy)
    contenders = {name: make_contender(loaded.agent, loaded.problem, loaded.forecaster)}
    if isinstance(loaded.agent, Advised):  # in shadow mode the policy is the advice
        beside = loaded.agent.agent if loaded.agent.shadow else loaded.agent.advice
        contenders["guard" if loaded.agent.shadow else "advice"] = make_contender(beside, loaded.problem)
    per_day, remembered = contexts.steps_per_day, loaded.contract.history_steps
    history_days = FORECAST_DAYS if remembered is None else max(remembered // per_day, FORECAST_DAYS)  # as in `fit`
    contenders |= reference_contenders(loaded.problem, per_day, history_days)
    with output.progress_bars(not json) as progress:
        rows = compare(contenders, test_days, lambda done, total: progress("testing", done, total))
    own, n_days = next(row for row in rows if row.name == name), test_days.days.shape[0]
    if own.not_applicable is not None:
        raise ValueError(f"{policy} cannot be run on {data}: {own.not_applicable}")
    costs = comparison_table.CostSummary.of(own, unit_cost)
    seen = count_seen_days(loaded, contexts, first)
    starts = contexts.time[:: contexts.steps_per_day]
    worst = {row.name: str(starts[first + row.worst_day]) for row in rows}
    if json:
        history = first if days is None else None
        found = {"policy": str(policy), "yours": name, "data": str(data), "days": n_days, "history_days": history}
        found["days_not_scored"] = test_days.not_scored
        found |= {"days_the_policy_has_seen": seen, "screened": len(replaced), "costs": dataclasses.asdict(costs)}
        found["rows"] = {row.name: row.as_json() | {"worst_day_starts": worst[row.name]} for row in rows}
        output.print_json(found)
    else:
        options.print_series(contexts.metadata)
        title = f"{n_days} day{'s' if n_days > 1 else ''} of {data.name}, from {starts[first]}"
        live = comparison_table.live_columns(rows)
        comparison_table.print_comparison(rows, title, loaded.problem, unit_cost, after=live)
        lines = [
            comparison_table.describe_worst_day(own, worst[name]),
            comparison_table.describe_promise(own, rows) or "promise: none.",
            costs.describe(loaded.contract.period_name, loaded.problem),
            *comparison_table.describe_not_scored(test_days),
        ]
        if days is None and first:
            them = f"{first} days are" if first > 1 else "1 day is"
            lines.append(f"the first {them} the policy's history and not counted; change that with --days.")
        if seen:
            rest = f"; --days {n_days - seen} tests on the others." if n_days > seen else "."
            lines.append(f"note: {seen} of these {n_days} days were used to train or select the policy{rest}")
        tables.print_notes(lines)
    options.report_replaced(data, contexts.time, replaced)
    if own.promise_kept is False:
        raise typer.Exit(1)
