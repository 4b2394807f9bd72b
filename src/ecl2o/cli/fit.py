"""`ecl2o fit`: from a series to a policy file, and how good it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ecl2o.cli import comparison_table, options, output

if TYPE_CHECKING:
    from ecl2o.data import Contexts
    from ecl2o.fitting.pipeline import FittedSeries


def fit(
    data: options.Series,
    out: Annotated[Path, typer.Option(help="Where to write the policy.")] = Path("policy.ecl2o"),
    alpha: Annotated[
        str,
        typer.Option(
            metavar=options.ALPHA,
            help="What moving costs: alpha/2 times the squared change, beside 1/2 the squared miss. One number for all columns, "
            "or one for each: demand=10,price=3.",
        ),
    ] = "10",
    promise: Annotated[
        float | None,
        typer.Option(
            callback=options.promised,
            help="Promise to pay at most this many times the optimum, whatever happens (for example 2).",
        ),
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
        Literal["auto", "ridge", "seasonal", "rhc", "r-obd", "mlp", "lstm"],
        typer.Option(
            help="Who advises: a regression that goes on learning, a linear rule on a daily profile, a planner on the profile of "
            "the last days, the expert, a network without or with memory. auto: the first four, whichever does best on the "
            "validation days."
        ),
    ] = "auto",
    column: options.Columns = None,
    weight_column: options.WeightColumn = None,
    weights: options.Weights = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    period: options.Period = None,
    day_start: options.DayStart = None,
    unit_cost: options.UnitCost = None,
    training_days: options.TrainingDays = None,
    validation_days: options.ValidationDays = None,
    search_worst_day: Annotated[
        bool, typer.Option("--search-worst-day", help="Also search for a day on which the policy does badly.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also draw a week of what the policy does, into this folder.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps. (default: enough)", hidden=True)] = None,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Learn a policy from a series of past contexts, and compare it on days held back.

    Training takes a minute or two for a year of hourly rows. What is cheapest on the validation days is taken, be it trained or
    not; the table is about the days after them. Costs are 1/2 |x - y|^2 + alpha/2 |x - previous x|^2 in the units of the file.
    """
    movement = options.parse_alpha(alpha)
    interval = None if contexts_in is None else options.parse_interval(contexts_in)
    limits = None if bounds is None else options.parse_interval(bounds, "--bounds")
    ends = options.parse_weights(weights, weight_column)
    if promise is None and (allowance or interval or per != "run"):
        raise typer.BadParameter("--per, --allowance and --contexts go with --promise.", param_hint="--promise")
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    _refuse_bad_place(out)
    from ecl2o.fitting.pipeline import FitSettings, bad_day, fit_contexts
    from ecl2o.fitting.settings import PromiseSpec
    from ecl2o.policy import save

    terms = None if promise is None else PromiseSpec(promise, per, allowance, interval)
    settings = FitSettings(movement, advisor, terms, steps, seed, limits, ends)
    split = options.make_split(training_days, validation_days)
    if report is not None:
        from ecl2o.plots.folder import check_replaceable

        check_replaceable(report, "--report")
    contexts = options.make_reader(data, column, time_column, fill, period, day_start, weight_column).contexts(split)
    with output.progress_bars(not json) as progress:
        fitted = fit_contexts(contexts, settings, progress)
    searched = search_worst_day and fitted.chosen.advisor not in ("ridge", "rhc")
    found = bad_day(fitted.policy, contexts, seed) if searched else None
    result = _as_json(fitted, out, found, unit_cost)
    if report is None:
        save(out, fitted.policy)
    else:
        from ecl2o.plots.folder import atomic_folder, write_results
        from ecl2o.plots.series import draw_policy_week

        with atomic_folder(report, "--report") as folder:  # both are written, or neither
            about = {"format": 1, "study": "own-series"}
            write_results(folder, about | result, {"week": draw_policy_week(fitted, contexts)})
            save(out, fitted.policy)
    if fitted.screened is not None:
        output.messages().print(f"{data.name}: {fitted.screened}", soft_wrap=True)
    if json:
        output.print_json(result)
        return
    _print(fitted, contexts, out, found, unit_cost)
    if search_worst_day and not searched:
        output.results().print(
            "worst day: not searched. The search plays days without a past, on which neither a regression nor a profile knows "
            "anything."
        )
    if report is not None:
        output.messages().print(f"figure: {report / 'figures' / 'week.png'}", soft_wrap=True)


def _refuse_bad_place(out: Path) -> None:
    """Before the training, not after it; a file that is no policy, the series itself among them, is not overwritten."""
    from ecl2o.policy.policy_file import is_ours

    output.check_writable(out, "--out")
    if out.exists() and not is_ours(out):
        raise typer.BadParameter(
            f"{out} is not a policy, and is not overwritten; choose another name, or move it away.", param_hint="--out"
        )


def _as_json(fitted: "FittedSeries", out: Path, found: Any, unit_cost: float | None) -> dict[str, Any]:
    import dataclasses

    from ecl2o.fitting.cost_summary import CostSummary

    rows = {row.name: row for row in fitted.entries}
    return {
        "policy": str(out),
        "settings": fitted.policy.metadata["settings"],
        "split": fitted.policy.metadata["split"] | {"test_days": fitted.test_days},
        "chosen": dataclasses.asdict(fitted.chosen),
        "candidates": [dataclasses.asdict(candidate) for candidate in fitted.candidates],
        "left_out": fitted.left_out,
        "test": comparison_table.as_json(fitted.entries),
        "bills": dataclasses.asdict(CostSummary.of(rows["policy"], unit_cost)),
        "expert_ratio": _expert_ratio(fitted),
        "bad_day_ratio": None if found is None else found.ratio,
    }


def _weights_in_words(fitted: "FittedSeries") -> str | None:
    """What weights are taken to be; None where there are none."""
    contract = fitted.policy.contract
    if contract.weights is None:
        return None
    low, high = contract.weights
    said = f"weights: of {contract.weight_column}, from {low:g} to {high:g} (--weights); the nearer end is billed for others"
    return said + (", and one outside ends the promise." if contract.promise is not None else ".")


def _expert_ratio(fitted: "FittedSeries") -> float:
    """R-OBD's, exactly, or the bound where weights vary."""
    from ecl2o.theory import exact_robd_ratio, robd_ratio

    problem = fitted.policy.problem
    if fitted.policy.contract.weights is not None:
        return float(robd_ratio(problem.m, problem.alpha, problem.beta))
    return float(exact_robd_ratio(problem.m, problem.beta))


def _possible_promise(fitted: "FittedSeries") -> str:
    """A ratio that can be promised: 2, or where that is too little the least with three decimals that is not."""
    import math

    import numpy as np

    from ecl2o.theory import smallest_feasible_ratio

    G = 2 * np.asarray(fitted.policy.problem.Q)
    weights = fitted.policy.contract.weights or (1.0, 1.0)
    least = float(smallest_feasible_ratio(G, curvature=np.eye(len(G)), weights=weights))
    return "2" if least < 2 else f"{(math.floor(1000 * least) + 1) / 1000:g}"


def _print(fitted: "FittedSeries", contexts: "Contexts", out: Path, found: Any, unit_cost: float | None) -> None:
    from ecl2o.fitting.cost_summary import CostSummary

    split = contexts.split
    rows = {row.name: row for row in fitted.entries}
    title = f"The last {fitted.test_days} days, which neither training ({split.training_days} days) nor choice "
    title += f"({split.validation_days} days) has seen"
    _print_table(fitted, title, unit_cost)
    say, policy = output.results().print, rows["policy"]
    say(_choice_in_words(fitted), soft_wrap=True)
    say(
        CostSummary.of(policy, unit_cost).in_words(fitted.policy.contract.period_name, fitted.policy.problem),
        soft_wrap=True,
    )
    promised, weighted = comparison_table.promise_line(policy), _weights_in_words(fitted)
    if weighted is not None:
        say(weighted, soft_wrap=True)
    if promised is None:
        possible = _possible_promise(fitted)
        say(
            "worst case: none is promised. R-OBD never pays more than "
            f"{_expert_ratio(fitted):.3f} times the optimum; with --promise {possible} your policy would keep to {possible}."
        )
    else:
        say(promised)
    if found is not None:
        say(f"worst day found by search: {found.ratio:.3f} times the optimum (within the range of your data).")
    say(_advice(fitted, out), soft_wrap=True)


LABELS = {
    "oracle": "oracle",
    "daily-oracle": "daily oracle",
    "policy": "your policy",
    "r-obd": "R-OBD",
    "rhc": "RHC, rolling profile",
    "guarded-rhc": "RHC, guarded",
    "promised-r-obd": "R-OBD, promised",
    "promised-rhc": "RHC, promised",
    "promised-ridge": "ridge, promised",
    "promised-ridge, corrected": "ridge, promised, corrected",
    "promised-ridge, weekly": "ridge, promised, weekly",
    "greedy": "Greedy",
}


def _print_table(fitted: "FittedSeries", title: str, unit_cost: float | None) -> None:
    """All that were tried with what they cost on the validation days, and what they were not chosen against."""
    tried = {candidate.name: candidate for candidate in fitted.candidates}
    trained, validation = [], []
    for row in fitted.entries:
        candidate = fitted.chosen if row.name == "policy" else tried.get(row.name)
        optimal = row.name in ("oracle", "daily-oracle")
        trained.append("" if optimal else "trained" if candidate is not None and candidate.trained else "not trained")
        error = "" if candidate is None else f"{candidate.average_cost:.3f} ± {candidate.standard_error:.3f}"
        validation.append(error)
    before = {"": trained, "validation": validation}
    comparison_table.print_entries(fitted.entries, title, LABELS, fitted.policy.problem, unit_cost, before)


def _choice_in_words(fitted: "FittedSeries") -> str:
    """What was chosen, how clear that is, and what was not tried."""
    chosen = fitted.chosen
    said = f"chosen on validation: {LABELS.get(chosen.name, chosen.name)}"
    others = sorted((c for c in fitted.candidates if c is not chosen), key=lambda candidate: candidate.behind)
    if others:
        second = others[0]
        clear = "" if second.behind > 2 * second.behind_error else ", which is not clear"
        name = LABELS.get(second.name, second.name)
        said += f"; {name} was {second.behind:.3f} ± {second.behind_error:.3f} behind there{clear}"
    said += f". tried: {', '.join(dict.fromkeys(candidate.advisor for candidate in fitted.candidates))}"
    if fitted.left_out:
        said += "; left out: " + ", ".join(f"{name} ({why})" for name, why in fitted.left_out.items())
    return said + "."


def _advice(fitted: "FittedSeries", out: Path) -> str:
    """What to do next, in one line."""
    rows = {row.name: row for row in fitted.entries}
    policy = rows["policy"]
    better = min(("rhc", "r-obd", "guarded-rhc"), key=lambda name: rows[name].average_cost)
    if policy.promise is None and policy.average_cost > 1.01 * rows[better].average_cost:
        return (
            f"next: {LABELS[better]} was cheaper on these days, though not on the validation days; try more training days or "
            f"another --advisor before you use {out}."
        )
    return f"next: ecl2o act {out}   (one context per line in, one action per line out; docs/operators.md)"
