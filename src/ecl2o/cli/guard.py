"""`ecl2o guard`: a policy that guards somebody else's advice, without data or training."""

from pathlib import Path

from ecl2o.cli import options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import check_positive, option, usage_error


@options.expand_options("known_ahead")
def guard(
    *,
    out: Path = option("File for the policy.", default=Path("guard.ecl2o")),
    guaranteed: options.PromiseOptions,
    baseline: str | None = option(
        "What --never-worse compares with: still, to hold the action in force; else the name of a column with the actions of "
        'the rule in use today, which each step brings as "baseline".',
        metavar="still|NAME",
        rich_help_panel="Promises",
    ),
    alpha: str = options.ALPHAS,
    costs: options.CostOptions,
    weight_column: str | None = option(
        "Name of the weight of a miss. (default: weight)", metavar="NAME", rich_help_panel="Costs and limits"
    ),
    plausible: str | None = option(
        "Range of readings; the last plausible one replaces others. One for all columns, or demand=0:60,price=1:9. "
        "(default: contexts are used as sent, and a missing one is an error)",
        metavar="LOW:HIGH|NAME=LOW:HIGH,...",
    ),
    column: list[str] | None = option(
        "Name of a number to follow; repeat for several. (default: context)", metavar="NAME"
    ),
    advice_column: list[str] | None = option(
        "Name of its advice; one for each --column. (default: advice)", metavar="NAME"
    ),
    every: float = option(
        "Minutes from one step to the next.", default=60.0, metavar="MINUTES", callback=check_positive
    ),
    shadow: bool = option(
        "Answer the advice unchanged, and report what the guard would have done.", "--shadow", default=False
    ),
    json: output.Json = False,
) -> None:
    """Make a policy that plays somebody else's advice as far as promises allow. It needs no data and no training.

    A step costs 1/2 |x - y|^2 + alpha/2 |x - previous x|^2 for the action x, the context y. Each step brings a context and the
    advice, which may be anything, or missing: in `act`, {"context": [12.5], "advice": [14]}; over HTTP the same. The answer has
    the action, what was changed and why, and what the advice alone would have cost.
    """
    movement = options.parse_alpha(alpha)
    if weight_column is not None and costs.weights is None:
        raise usage_error("--weights", "--weight-column needs it.")
    if advice_column is not None and len(advice_column) != len(column or ["context"]):
        raise usage_error("--advice-column", "give one name for each --column, or none.")
    ratios: dict[str, float] = {}
    shares: dict[str, float] = {}
    for ratio, each, of_baseline in guaranteed.parse(baseline, costs):
        if not of_baseline and each in ratios:
            raise usage_error("--per", f"gives two promises for the same period, {each}.")
        (shares if of_baseline else ratios)[each] = ratio - 1 if of_baseline else ratio
    if not ratios and not shares:
        raise usage_error("--promise", "a guard needs a promise: give --promise, or --never-worse with --baseline.")
    use_cached_programs()
    from ecl2o.cli.comparison_table import describe_limits
    from ecl2o.fitting.guard_policy import guard_policy
    from ecl2o.policy import save
    from ecl2o.policy.advice import find_promise
    from ecl2o.policy.contract import describe_shift

    options.check_policy_output(out)
    policy = guard_policy(
        ratios or None,
        alpha=movement,
        never_worse=shares or None,
        baseline=baseline,
        allowance=guaranteed.allowance,
        contexts=guaranteed.contexts,
        bounds=costs.limits,
        misses=costs.misses,
        weights=costs.weight_range,
        weight_column=weight_column or "weight",
        ramp=costs.ramp,
        spacing=costs.spacing,
        delay=costs.delay,
        plausible=options.parse_plausible(plausible),
        columns=column or ["context"],
        advice=advice_column,
        step_minutes=every,
        shadow=shadow,
    )
    save(out, policy)
    contract, promised = policy.contract, find_promise(policy)
    assert promised is not None
    assert contract.columns is not None
    if json:
        output.print_json(
            {"policy": str(out), "promise": promised.to_json(), "columns": contract.columns} | {"shadow": shadow}
        )
        return
    sent = [f"context ({', '.join(contract.columns[: -len(contract.covariates)])})"]
    sent += [f"baseline ({name})" for name in contract.covariates if name not in contract.advice]
    told = [describe_limits(contract), describe_shift(costs.delay) if costs.delay else None]
    if costs.limits is not None:
        told.append(f"actions stay between {costs.limits[0]:g} and {costs.limits[1]:g}.")
    if costs.weight_range is not None:
        told.append("the promise ends if a weight leaves {:g} to {:g}.".format(*costs.weight_range))
    start = ",".join("0" for _ in contract.advice)
    lines = [
        f"wrote {out}.",
        f"promise: {promised}, whatever the advice." + (" In shadow mode nothing is promised." if shadow else ""),
        f"each step brings: {', '.join(sent)} and advice ({', '.join(contract.advice)}); a step is {every:g} minutes (--every).",
        *(line for line in told if line is not None),
        f"next: ecl2o serve {out}   or   ecl2o act {out} --x0 {start}   (x0: the action in force; docs/guard-your-policy.md)",
    ]
    tables.print_notes(lines)
