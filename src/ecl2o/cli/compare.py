"""`ecl2o compare`: any agents, and any policies, on the same contexts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecl2o.cli import output, series

if TYPE_CHECKING:
    from ecl2o.evaluation import Bed
    from ecl2o.evaluation.comparison import Entry
    from ecl2o.problem import Problem

_DEFAULT = "greedy,r-obd,obd,ogd,lai,rhc,chc,competitive-rhc"
_FORECASTERS = ("rolling-profile", "seasonal-naive", "persistence", "exact")
_HISTORY_DAYS = 14
_MOST_HISTORY_DAYS = 365  # what agents that learn while they run may begin on
_POLICY = ".ecl2o"


def compare(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DATA]", help="A CSV or Parquet file; or give --study.", show_default=False),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(help="Problems that come with the program: demand-response, right-sizing or varying-curvature."),
    ] = None,
    agents: Annotated[
        str,
        typer.Option(
            help="Names with commas, and policy files; 'all' for all that need no training, 'list' to see them."
        ),
    ] = _DEFAULT,
    alpha: Annotated[
        float | None,
        typer.Option(help="What moving costs: alpha/2 times the squared change. (default: 10, or the study's own)"),
    ] = None,
    forecaster: Annotated[
        str, typer.Option(help=f"What planners ask: {', '.join(_FORECASTERS)} (which knows the future).")
    ] = _FORECASTERS[0],
    days: Annotated[int | None, typer.Option(min=1, help="Only the last so many days. (default: all)")] = None,
    column: series.Columns = None,
    time_column: series.TimeColumn = None,
    fill: series.Fill = None,
    period: series.Period = None,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Run agents on the same days, and print one table: average cost, worst day, tail, microseconds per step.

    An agent that is not for the problem has a row without figures, and below the table stands why.
    """
    if agents == "list":
        return _list(json)
    if (data is None) == (study is None):
        raise typer.BadParameter("give either a file or --study, not both and not neither.", param_hint="DATA")
    if alpha is not None and not 0 < alpha < float("inf"):
        raise typer.BadParameter(f"must be positive and finite, got {alpha:g}.", param_hint="--alpha")
    if forecaster not in _FORECASTERS:
        raise typer.BadParameter(f"must be one of {', '.join(_FORECASTERS)}.", param_hint="--forecaster")
    from ecl2o.cli.numerics import use_double_precision

    use_double_precision()
    from ecl2o.evaluation.comparison import compare as compare_days

    names = _names(agents)
    if study is not None:
        bed = _study_bed(study, alpha, seed)
    else:
        assert data is not None
        bed = _series_bed(series.Reading(data, column, time_column, fill, period), alpha or 10.0)
    bed = _last_days(bed, days)
    entries = _entries(names, bed, forecaster)
    with output.progress_bars(not json) as progress:
        rows = compare_days(entries, bed, lambda done, total: progress("comparing", done, total))
    refused = {row.name: row.not_applicable for row in rows if row.not_applicable is not None}
    if len(refused) == len(entries):
        name, reason = next(iter(refused.items()))
        raise ValueError(f"no agent applies; {name}: {reason}")
    if json:
        found = {
            "contexts": study or str(data),
            "days": bed.days.shape[0],
            "alpha": float(bed.problem.alpha),
            "forecaster": forecaster,
        }
        output.print_json(found | {"agents": series.as_json(rows), "not_applicable": refused})
        return None
    series.print_rows(
        rows,
        f"{bed.days.shape[0]} days of {study or data}, alpha = {float(bed.problem.alpha):.3g}, forecaster: {forecaster}",
        {},
    )
    return None


def _list(as_json: bool) -> None:
    from ecl2o.recipes.catalogue import NAMED_AGENTS

    if as_json:
        output.print_json(list(NAMED_AGENTS))
    else:
        typer.echo("\n".join(NAMED_AGENTS))


def _study_bed(name: str, alpha: float | None, seed: int) -> "Bed":
    from ecl2o.problem import NotApplicable
    from ecl2o.studies.beds import BEDS

    if name not in BEDS:
        raise typer.BadParameter(f"no study is called {name!r}; there are {', '.join(BEDS)}.", param_hint="--study")
    try:
        return BEDS[name](alpha, seed)
    except NotApplicable as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None


def _series_bed(reading: series.Reading, alpha: float) -> "Bed":
    """The series as days, the first ones as history."""
    from ecl2o.evaluation import Bed
    from ecl2o.recipes.own_series import tracking_problem

    contexts = reading.whole()
    per_day = contexts.steps_per_day
    first = min(_HISTORY_DAYS, contexts.n_days // 2)
    values = contexts.values[: contexts.n_days * per_day].reshape(contexts.n_days, per_day, contexts.dim)
    history = contexts.values[: first * per_day]
    return Bed.of(tracking_problem(contexts.dim, alpha), history[-1], values[first:], history)


def _last_days(bed: "Bed", days: int | None) -> "Bed":
    """The same bed with its last days only; what comes before them is history."""
    if days is None or days >= bed.days.shape[0]:
        return bed
    import jax.numpy as jnp

    from ecl2o.evaluation import Bed

    before, kept = bed.days[:-days], bed.days[-days:]
    past = before.reshape(-1, before.shape[-1])
    x0 = past[-1] if past.shape[-1] == bed.x0.shape[0] else bed.x0
    if bed.history is not None:
        past = jnp.concatenate([bed.history, past])[-_MOST_HISTORY_DAYS * bed.days.shape[1] :]
    return Bed.of(bed.problem, x0, kept, None if bed.history is None else past)


def _names(agents: str) -> list[str]:
    """The agents and policy files that are meant, refusing what is neither before anything is computed."""
    from ecl2o.recipes.catalogue import NAMED_AGENTS

    names = list(NAMED_AGENTS) if agents == "all" else [name.strip() for name in agents.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMED_AGENTS and not _is_policy(name)]
    if unknown or not names:
        asked = f"no agent is called {unknown[0]!r}" if unknown else "name at least one agent"
        raise typer.BadParameter(
            f"{asked}; there are {', '.join(NAMED_AGENTS)}, and policy files.", param_hint="--agents"
        )
    return names


def _is_policy(name: str) -> bool:
    return name.endswith(_POLICY) or Path(name).is_file()


def _entries(names: list[str], bed: "Bed", forecaster: str) -> "dict[str, Entry]":
    import equinox as eqx

    from ecl2o.evaluation.comparison import streamed
    from ecl2o.recipes.catalogue import named_entry
    from ecl2o.serving import load

    asked = _forecaster(forecaster, bed.days.shape[1])
    found = {}
    for name in names:
        if _is_policy(name):
            policy = load(name)
            made_for = policy.contract.steps_per_day
            if made_for is not None and made_for != bed.days.shape[1]:
                raise ValueError(
                    f"{name} was made for days of {made_for} steps, but the days here have {bed.days.shape[1]}."
                )
            if not eqx.tree_equal(policy.problem, bed.problem, rtol=1e-6):
                raise ValueError(
                    f"{name} was made for another problem than this one (other costs, bounds or alpha); its own is: "
                    f"{_in_words(policy.problem)}, and this one: {_in_words(bed.problem)}."
                )
            found[Path(name).name] = streamed(policy.agent, policy.problem, policy.forecaster)
        else:
            found[name] = named_entry(name, bed, asked)
    return found


def _in_words(problem: "Problem") -> str:
    parts = [type(part).__name__ for part in (problem.hitting, problem.switching, problem.actions)]
    return f"{', '.join(parts)}, m = {float(problem.m):g}, alpha = {float(problem.alpha):g}, beta = {float(problem.beta):g}"


def _forecaster(name: str, steps: int) -> Any:
    from ecl2o import forecasters

    return {
        "rolling-profile": lambda: forecasters.RollingProfile(period=steps),
        "seasonal-naive": lambda: forecasters.SeasonalNaive(period=steps),
        "persistence": forecasters.Persistence,
        "exact": forecasters.Exact,
    }[name]()
