"""`ecl2o fit`: from a series to a policy file, and how good it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ecl2o.cli import output, series

if TYPE_CHECKING:
    from ecl2o.data import Contexts
    from ecl2o.recipes.own_series import FittedSeries


def fit(
    data: series.Series,
    out: Annotated[Path, typer.Option(help="Where to write the policy.")] = Path("policy.ecl2o"),
    alpha: Annotated[
        str,
        typer.Option(
            metavar=series.ALPHA,
            help="What moving costs: alpha/2 times the squared change, beside 1/2 the squared miss. One number for all columns, "
            "or one for each: demand=10,price=3.",
        ),
    ] = "10",
    promise: Annotated[
        float | None,
        typer.Option(help="Promise to pay at most this many times the optimum, whatever happens (for example 2)."),
    ] = None,
    per: Annotated[
        Literal["day", "week", "month", "run"],
        typer.Option(
            help="What the promise is for: the whole run, or each month of 30 days, week or day by itself. The shorter, the "
            "dearer; single days of a longer promise are not bounded."
        ),
    ] = "run",
    allowance: Annotated[
        float, typer.Option(min=0.0, help="What may be paid on top of the promise in each period, in units of cost.")
    ] = 0.0,
    contexts_in: Annotated[
        str | None,
        typer.Option(
            "--contexts", metavar="LOW:HIGH", help="All contexts are known to lie there: a promise then allows more."
        ),
    ] = None,
    bounds: Annotated[
        str | None,
        typer.Option(metavar="LOW:HIGH", help="Actions stay there; a promise then counts on contexts there too."),
    ] = None,
    advisor: Annotated[
        Literal["auto", "ridge", "seasonal", "mlp", "lstm"],
        typer.Option(
            help="What learns: a regression that goes on learning, a linear rule on a daily profile, a network without or "
            "with memory. auto: the first or the second, whichever does better on the validation days."
        ),
    ] = "auto",
    column: series.Columns = None,
    time_column: series.TimeColumn = None,
    fill: series.Fill = None,
    period: series.Period = None,
    training_days: series.TrainingDays = None,
    validation_days: series.ValidationDays = None,
    search_worst_day: Annotated[
        bool, typer.Option("--search-worst-day", help="Also search for a day on which the policy does badly.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps. (default: enough)", hidden=True)] = None,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Learn a policy from a series of past contexts, and compare it on days held back.

    Training takes a minute or two for a year of hourly rows. Advisor, trust and mu are chosen on the validation days; the table
    is about the days after them. Costs are 1/2 |x - y|^2 + alpha/2 |x - previous x|^2 in the units of the file.
    """
    movement = series.alpha_of(alpha)
    interval = None if contexts_in is None else series.interval_of(contexts_in)
    limits = None if bounds is None else series.interval_of(bounds, "--bounds")
    if promise is None and (allowance or interval or per != "run"):
        raise typer.BadParameter("--per, --allowance and --contexts go with --promise.", param_hint="--promise")
    from ecl2o.cli.numerics import use_double_precision

    use_double_precision()
    _refuse_bad_place(out)
    from ecl2o.recipes.own_series import Recipe, bad_day, fit_series
    from ecl2o.recipes.terms import Terms
    from ecl2o.serving import save

    terms = None if promise is None else Terms(promise, per, allowance, interval)
    recipe = Recipe(movement, advisor, terms, steps, seed, limits)
    split = series.split_of(training_days, validation_days)
    contexts = series.reading(data, column, time_column, fill, period).contexts(split)
    with output.progress_bars(not json) as progress:
        fitted = fit_series(contexts, recipe, progress)
    found = None
    if search_worst_day and fitted.chosen.advisor != "ridge":
        found = bad_day(fitted.policy, contexts, seed)
    save(out, fitted.policy)
    if fitted.screened is not None:
        output.messages().print(f"{data.name}: {fitted.screened}", soft_wrap=True)
    if json:
        output.print_json(_as_json(fitted, out, found))
    else:
        _print(fitted, contexts, out, found)
        if search_worst_day and found is None:
            output.results().print(
                "worst day: not searched. The search plays days without a past, on which a regression has learned nothing and "
                "plays R-OBD."
            )


def _refuse_bad_place(out: Path) -> None:
    """Before the training, not after it."""
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder.", param_hint="--out")
    output.refuse_unless_writable(out, "--out")


def _as_json(fitted: "FittedSeries", out: Path, found: Any) -> dict[str, Any]:
    import dataclasses

    return {
        "policy": str(out),
        "recipe": fitted.policy.metadata["recipe"],
        "split": fitted.policy.metadata["split"] | {"test_days": fitted.test_days},
        "chosen": dataclasses.asdict(fitted.chosen),
        "candidates": [dataclasses.asdict(candidate) for candidate in fitted.candidates],
        "test": series.as_json(fitted.entries),
        "expert_ratio": _expert_ratio(fitted),
        "bad_day_ratio": None if found is None else found.ratio,
    }


def _expert_ratio(fitted: "FittedSeries") -> float:
    from ecl2o.theory import exact_robd_ratio

    problem = fitted.policy.problem
    return float(exact_robd_ratio(problem.m, problem.beta))


def _print(fitted: "FittedSeries", contexts: "Contexts", out: Path, found: Any) -> None:
    split, chosen = contexts.split, fitted.chosen
    rows = {row.name: row for row in fitted.entries}
    labels = {"oracle": "oracle", "policy": "your policy", "r-obd": "R-OBD", "rhc": "RHC, rolling profile"}
    title = f"The last {fitted.test_days} days, which neither training ({split.training_days} days) nor choice "
    title += f"({split.validation_days} days) has seen"
    series.print_rows(fitted.entries, title, labels)
    say = output.results().print
    setting = f"trust {chosen.trust:g}, mu {chosen.mu:g}" if chosen.trust is not None else "its advice as it is"
    if chosen.advisor == "ridge" and rows["policy"].promise is not None:
        setting = "behind its promise"
    say(f"chosen on validation: {chosen.advisor}, {setting} (average cost {chosen.average_cost:.3f} there).")
    promised = series.promise_line(rows["policy"])
    if promised is None:
        say(
            "worst case: none is promised. R-OBD never pays more than "
            f"{_expert_ratio(fitted):.3f} times the optimum; with --promise 2 your policy would keep to 2."
        )
    else:
        say(promised)
    if found is not None:
        say(f"worst day found by search: {found.ratio:.3f} times the optimum (within the range of your data).")
    say(_advice(rows, out), soft_wrap=True)


def _advice(rows: dict[str, Any], out: Path) -> str:
    """What to do next, in one line."""
    policy = rows["policy"]
    better = min(("rhc", "r-obd"), key=lambda name: rows[name].average_cost)
    if policy.promise is None and policy.average_cost > rows[better].average_cost:
        name = {"rhc": "RHC", "r-obd": "R-OBD"}[better]
        return f"next: {name} was cheaper here; try more training days or another --advisor before you use {out}."
    return f"next: ecl2o act {out}   (one context per line in, one action per line out; docs/operators.md)"
