"""`ecl2o fit`: fit a policy to a series, and show how good it is."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ecl2o.cli import comparison_table, options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import option, usage_error

if TYPE_CHECKING:
    from ecl2o.data import Contexts
    from ecl2o.evaluation import Certificate
    from ecl2o.fitting.pipeline import FittedSeries


@options.expand_options()
def fit(
    data: options.Series,
    *,
    out: Path = option("File for the policy.", default=Path("policy.ecl2o")),
    alpha: str = options.ALPHAS,
    guaranteed: options.PromiseOptions,
    band: str | None = option(
        "Columns with the ends of a band around the coming steps, in each row, as in low1..low23,high1..high23; or forecasts and "
        "a half-width, as in f1..f23,0.5. A promise for each day then costs less, and ends if a context leaves the band.",
        metavar="LOW,HIGH|FAMILY,WIDTH",
    ),
    baseline: str | None = option(
        "Column with the actions of the rule in use today; readings of later steps need it too.",
        metavar="NAME",
        rich_help_panel="Promises",
    ),
    costs: options.CostOptions,
    plausible: str | None = options.PLAUSIBLE,
    advisor: Literal["auto", "ridge", "fourier", "rhc", "r-obd", "mlp", "lstm"] = option(
        "ridge: regressions that keep learning; fourier: a mixture of them and a regression on random features; rhc: a "
        "planner on the profile of the last days; r-obd: the expert; mlp, lstm: networks. auto tries ridge, fourier, rhc and "
        "r-obd; validation days select.",
        default="auto",
    ),
    reading: options.ReadingOptions,
    unit_cost: float | None = options.UNIT_COST,
    training_days: int | None = options.TRAINING_DAYS,
    validation_days: int | None = options.VALIDATION_DAYS,
    search_worst_day: bool = option("Also search for a bad day of the policy.", "--search-worst-day", default=False),
    report: Path | None = option("Folder for report.html, results.json and a figure of a week.", metavar="DIR"),
    steps: int | None = options.TRAINING_STEPS,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Fit a policy to a series of past contexts, and compare it on days held back.

    The mixture becomes the policy, marked (yours), unless another candidate costs less by more than a standard error on the
    validation days; the table shows the test days after them. Rows are named by --advisor, here and in JSON. A step costs 1/2
    |x - y|^2 + alpha/2 |x - previous x|^2 in the file's units; --short and --long weigh misses below and above y.
    """
    movement = options.parse_alpha(alpha)
    readings = options.parse_plausible(plausible)
    costs.check_weights(reading)
    promises = guaranteed.parse(baseline, costs)
    families, ends_of_band, half_width = options.parse_band(band, promises)
    forecast = reading.forecast or []
    reading = dataclasses.replace(reading, forecast=[*forecast, *(each for each in families if each not in forecast)])
    for given, name in (
        (costs.shift, "--delay and --known-ahead"),
        (guaranteed.contexts or costs.limits, "--contexts and --bounds"),
    ):
        if band is not None and given:
            raise usage_error("--band", f"it cannot be combined with {name}.")
    use_cached_programs()
    from ecl2o.exceptions import DataError
    from ecl2o.fitting.pipeline import fit_contexts, search_bad_day
    from ecl2o.fitting.settings import Band, PromiseSpec
    from ecl2o.policy import save

    options.check_policy_output(out)
    settings = costs.make_settings(movement, advisor=advisor, steps=steps, seed=seed, plausible=readings)
    split = options.make_split(training_days, validation_days)
    if report is not None:
        from ecl2o.plots.folder import check_replaceable

        check_replaceable(report, "--report")
    contexts = reading.make_reader(data, baseline).read_split(split)
    columns = [] if contexts.metadata is None else getattr(contexts.metadata, "columns", [])
    if baseline is not None and contexts.action_dim > 1:
        raise usage_error("--baseline", f"it is for one column that is followed, got {contexts.action_dim}.")
    try:
        specs = [
            PromiseSpec(ratio, each, baseline=columns.index(baseline))
            if of_baseline
            else PromiseSpec(ratio, each, guaranteed.allowance, guaranteed.contexts)
            for ratio, each, of_baseline in promises
        ]
        if band is not None:
            names, period = list(contexts.covariates), specs[0].steps(contexts.steps_per_day)
            assert period is not None
            places = contexts.leads, contexts.dim - len(names), names
            specs[0] = dataclasses.replace(specs[0], band=Band.of(*places, ends_of_band, half_width, period))
    except DataError:
        raise
    except ValueError as error:
        raise usage_error("--per", str(error)) from None
    spec = dataclasses.replace(specs[0], also=tuple(specs[1:])) if specs else None
    settings = dataclasses.replace(settings, promise=spec)
    with output.progress_bars(not json) as progress:
        fitted = fit_contexts(contexts, settings, progress)
    needs_past = fitted.chosen.advisor in ("ridge", "fourier", "rhc")
    searched = search_worst_day and not costs.shift and not needs_past
    worst = search_bad_day(fitted.policy, contexts, seed) if searched else None
    if search_worst_day and not searched:
        tables.print_message(
            "worst day: not searched. The search plays single days without a history, a delay or contexts known ahead, and the "
            "selected policy needs one of these."
        )
    result, notes = _as_json(fitted, out, worst, unit_cost), _list_notes(fitted, contexts, out, worst, unit_cost)
    if report is None:
        save(out, fitted.policy)
    else:
        from ecl2o.plots.folder import PAGE, atomic_folder, write_results, write_text
        from ecl2o.plots.series import draw_policy_week, fit_page

        with atomic_folder(report, "--report") as folder:  # all is written, or nothing
            about = {"format": 1, "study": "own-series"}
            write_results(folder, about | result, {"week": draw_policy_week(fitted, contexts)})
            rows, title = fitted.comparison, _describe_split(fitted, contexts)
            legend = comparison_table.describe_columns(rows, fitted.policy.problem, unit_cost)
            explained = [*comparison_table.list_exceptions(rows), legend, *notes]
            table = comparison_table.make_table(rows, unit_cost, _validation_columns(fitted))
            text = fit_page(data.name, options.describe_series(contexts.metadata), title, table, explained, folder)
            write_text(folder / PAGE, text)
            save(out, fitted.policy)
    if fitted.screened is not None:
        tables.print_message(f"{data.name}: {fitted.screened}")
    if json:
        output.print_json(result)
        return
    options.print_series(contexts.metadata)
    title, before = _describe_split(fitted, contexts), _validation_columns(fitted)
    comparison_table.print_comparison(fitted.comparison, title, fitted.policy.problem, unit_cost, before)
    tables.print_notes(notes)
    if report is not None:
        tables.print_message(f"report: {report / 'report.html'}")


def _as_json(fitted: "FittedSeries", out: Path, worst: "Certificate | None", unit_cost: float | None) -> dict[str, Any]:
    return {
        "policy": str(out),
        "yours": fitted.own.name,
        "settings": fitted.policy.metadata["settings"],
        "split": fitted.policy.metadata["split"] | {"test_days": fitted.n_test_days},
        "test_days_not_scored": fitted.test_days.not_scored,
        "chosen": dataclasses.asdict(fitted.chosen),
        "candidates": [dataclasses.asdict(candidate) for candidate in fitted.candidates],
        "left_out": fitted.left_out,
        "test": {row.name: row.as_json() for row in fitted.comparison},
        "costs": dataclasses.asdict(comparison_table.CostSummary.of(fitted.own, unit_cost)),
        "expert_ratio": None if fitted.policy.contract.shift else _expert_ratio(fitted),
        "bad_day_ratio": None if worst is None else worst.ratio,
    }


def _expert_ratio(fitted: "FittedSeries") -> float:
    """Return R-OBD's exact ratio, or its bound if the curvature varies."""
    from ecl2o.problem import SquaredTracking
    from ecl2o.theory import exact_robd_ratio, robd_ratio

    problem = fitted.policy.problem
    if not isinstance(problem.hitting, SquaredTracking):
        return float(robd_ratio(problem.m, problem.alpha, problem.beta))
    return float(exact_robd_ratio(float(problem.m), float(problem.beta)))


def _feasible_promise(fitted: "FittedSeries") -> str:
    """Return a ratio that can be promised: 2, or the least with three decimals if that is more."""
    import numpy as np

    from ecl2o.theory import smallest_feasible_ratio

    G = 2 * np.asarray(fitted.policy.problem.Q)
    low, high = fitted.policy.problem.hitting.curvature_bounds(len(G))
    assert high is not None
    weights = float(np.asarray(low)[0, 0]), float(np.asarray(high)[0, 0])
    least = float(smallest_feasible_ratio(G, curvature=np.eye(len(G)), weights=weights))
    return "2" if least < 2 else f"{(math.floor(1000 * least) + 1) / 1000:g}"


def _describe_shifted_promise(fitted: "FittedSeries") -> str:
    """Return which promises could be made, with a delay or contexts known ahead."""
    from ecl2o.exceptions import NotApplicableError
    from ecl2o.theory import smallest_control_ratio

    try:
        game = fitted.policy.problem.game
        assert game is not None
        least = smallest_control_ratio(game)
    except NotApplicableError:
        return "worst case: no promise; with a delay or known contexts one needs equal weights of misses and no bounds."
    ratio = f"{max((math.floor(1000 * least) + 1) / 1000, 2):g}"
    rounded = "" if fitted.policy.contract.spacing is None else " plus what rounding adds"
    return (
        f"worst case: no promise. With --promise {ratio} your policy costs at most {ratio} times the optimum{rounded}; "
        f"{least:.6f} is the smallest ratio that any policy has here."
    )


def _describe_split(fitted: "FittedSeries", contexts: "Contexts") -> str:
    days = f"after {contexts.split.training_days} days of training and {contexts.split.validation_days} of validation"
    return f"Test on the last {fitted.n_test_days} days, {days}"


def _validation_columns(fitted: "FittedSeries") -> comparison_table.Columns:
    found = [fitted.describe_validation(row) for row in fitted.comparison]
    costs = ["" if math.isnan(cost) else f"{cost:.3f} ± {error:.3f}" for _, cost, error in found]
    return {"training": [training for training, _, _ in found], "validation": costs}


def _list_notes(
    fitted: "FittedSeries", contexts: "Contexts", out: Path, worst: "Certificate | None", unit_cost: float | None
) -> list[str]:
    """Return what is to be said below the table."""
    from ecl2o.policy.contract import describe_shift

    contract, problem, policy = fitted.policy.contract, fitted.policy.problem, fitted.own
    costs = comparison_table.CostSummary.of(policy, unit_cost)
    lines = [_describe_choice(fitted), costs.describe(contract.period_name, problem)]
    if contract.weights is not None:
        low, high = contract.weights
        line = f"weights: column {contract.weight_column}, limited to {low:g} to {high:g} (--weights)"
        lines.append(line + ("; a weight outside ends the promise." if contract.promise is not None else "."))
    ranges = zip(contract.columns or (), contract.plausible or (), strict=True)
    lines.append(
        f"plausible readings: {', '.join(f'{name} {low:g} to {high:g}' for name, (low, high) in ranges)} (--plausible)."
    )
    imputed = contexts.describe_imputed()
    lines += [] if imputed is None else [output.name_options(imputed)]
    if contract.shift:
        lines.append(describe_shift(contract.shift).removesuffix(".") + "; rhc, r-obd and the optimum know it too.")
    promised = comparison_table.describe_promise(policy, fitted.comparison)
    limits = comparison_table.describe_limits(contract, " in every row")
    lines += [] if limits is None else [limits]
    if promised is None and contract.shift:
        promised = _describe_shifted_promise(fitted)
    elif promised is None and limits is not None:
        promised = "worst case: no promise (--promise; with --ramp also --contexts or --bounds)."
    elif promised is None:
        ratio = _feasible_promise(fitted)
        promised = f"worst case: no promise. R-OBD costs at most {_expert_ratio(fitted):.3f} times the optimum; with --promise "
        promised += f"{ratio} your policy costs at most {ratio} times the optimum."
    lines.append(promised)
    if worst is not None:
        lines.append(f"worst day found: {worst.ratio:.3f} times the optimum, with contexts in the range of your data.")
    return [*lines, _describe_next_step(fitted, out)]


def _describe_choice(fitted: "FittedSeries") -> str:
    """Describe the selection, its margin, and the candidates that were skipped."""
    chosen, failed = fitted.chosen, sum(candidate.failed for candidate in fitted.candidates)
    text = f"selected on validation: {chosen.name}"
    others = [c for c in fitted.candidates if c is not chosen and not c.failed]
    if others:
        second = min(others, key=lambda candidate: candidate.behind)
        clear = "" if abs(second.behind) > 2 * second.behind_error else " (not significant)"
        kind = "more" if second.behind >= 0 else "less"
        text += (
            f"; second is {second.name}, {abs(second.behind):.3f} ± {second.behind_error:.3f} {kind} expensive{clear}"
        )
    text += f". tried: {', '.join(dict.fromkeys(candidate.advisor for candidate in fitted.candidates))}"
    if fitted.left_out:
        text += "; not tried: " + ", ".join(f"{name} ({why})" for name, why in fitted.left_out.items())
    if failed:
        text += f"; {failed} trainings failed: on the validation days they cost no less than before"
    return text + "."


def _describe_next_step(fitted: "FittedSeries", out: Path) -> str:
    rows, policy = fitted.rows, fitted.own
    references = [name for name in ("rhc", "r-obd", "guarded-rhc") if name in rows]
    better = min(references, key=lambda name: rows[name].average_cost)
    if policy.promise is None and policy.average_cost > 1.01 * rows[better].average_cost:
        return (
            f"next: {better} was cheaper on the test days, though not on the validation days. Try more "
            f"training days or another --advisor before you use {out}."
        )
    return f"next: ecl2o act {out}   (one context per line in, one action per line out; docs/operators.md)"
