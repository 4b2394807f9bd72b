"""`ecl2o compare`: agents and policies on the same days."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecl2o.cli import comparison_table, options, output

if TYPE_CHECKING:
    from ecl2o.evaluation import TestDays

_DEFAULT = "greedy,r-obd,obd,ogd,lai,rhc,chc,competitive-rhc"
_FORECASTERS = ("rolling-profile", "seasonal-naive", "persistence", "exact")


def compare(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DATA]", help="CSV or Parquet file; or give --study.", show_default=False),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Built-in problem: demand-response, right-sizing, varying-curvature, prices or prices-tariff."
        ),
    ] = None,
    agents: Annotated[
        str,
        typer.Option(
            help="Names and policy files, separated by commas; 'all' for all that need no training, 'list' to list them."
        ),
    ] = _DEFAULT,
    alpha: Annotated[
        str | None,
        typer.Option(
            metavar=options.ALPHA,
            help="Cost of moving: alpha/2 times the squared change. One number, or one per column of a file: "
            "demand=10,price=3. (default: 10, or the study's own)",
        ),
    ] = None,
    forecaster: Annotated[
        str, typer.Option(help=f"Forecaster of the planners: {', '.join(_FORECASTERS)} (knows the future).")
    ] = _FORECASTERS[0],
    days: Annotated[
        int | None, typer.Option(min=1, help="Number of days to compare on, the last ones. (default: all)")
    ] = None,
    column: options.Columns = None,
    weight_column: options.WeightColumn = None,
    weights: options.Weights = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    period: options.Period = None,
    bounds: Annotated[
        str | None,
        typer.Option(metavar="LOW:HIGH", help="Range of actions; needed for a policy that was fitted with bounds."),
    ] = None,
    day_start: options.DayStart = None,
    unit_cost: options.UnitCost = None,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Run agents on the same days, and print one table: average cost, worst day, tail, microseconds per step.

    An agent that does not apply to the problem gets a row without figures, and a note below the table says why.
    """
    if agents == "list":
        return _list(json)
    if (data is None) == (study is None):
        raise typer.BadParameter("give either a file or --study.", param_hint="DATA")
    if study is not None and weight_column is not None:
        raise typer.BadParameter("applies to a file; a study has its own costs.", param_hint="--weight-column")
    if study is not None and bounds is not None:
        raise typer.BadParameter("applies to a file; a study has its own actions.", param_hint="--bounds")
    limits = options.parse_interval(bounds, "--bounds")
    movement = None if alpha is None else options.parse_alpha(alpha)
    ends = options.parse_weights(weights, weight_column)
    if forecaster not in _FORECASTERS:
        raise typer.BadParameter(f"must be one of {', '.join(_FORECASTERS)}.", param_hint="--forecaster")
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    from ecl2o.evaluation.comparison import compare as compare_days
    from ecl2o.fitting.named_agents import make_contenders
    from ecl2o.fitting.tasks import last_test_days, series_test_days

    names, replaced = _names(agents), ()
    if study is not None:
        test_days = last_test_days(_study_test_days(study, movement, seed), days)
    else:
        assert data is not None
        reader = options.make_reader(data, column, time_column, fill, period, day_start, weight_column)
        contexts, replaced = options.screen_contexts(data, reader.read_days())
        test_days = series_test_days(contexts, movement or 10.0, ends, limits, days)
    contenders = make_contenders(names, test_days, forecaster)
    with output.progress_bars(not json) as progress:
        rows = compare_days(contenders, test_days, lambda done, total: progress("comparing", done, total), timed=True)
    refused = {row.name: row.not_applicable for row in rows if row.not_applicable is not None}
    if len(refused) == len(contenders):
        name, reason = next(iter(refused.items()))
        raise ValueError(f"no agent applies; {name}: {reason}")
    if json:
        found = {
            "contexts": study or str(data),
            "days": test_days.days.shape[0],
            "alpha": movement if isinstance(movement, dict) else float(test_days.problem.alpha),
            "forecaster": forecaster,
            "screened": len(replaced),
        }
        output.print_json(found | {"agents": comparison_table.as_json(rows), "not_applicable": refused})
        return None
    said = alpha if isinstance(movement, dict) else f"{float(test_days.problem.alpha):.3g}"
    comparison_table.print_comparison(
        rows,
        f"{test_days.days.shape[0]} days of {study or data}, alpha = {said}, forecaster: {forecaster}",
        {"daily-oracle": "daily oracle"},
        test_days.problem,
        unit_cost,
        after=comparison_table.live_columns(rows),
    )
    return None


def _list(as_json: bool) -> None:
    from ecl2o.fitting.named_agents import NAMED_AGENTS

    if as_json:
        output.print_json(list(NAMED_AGENTS))
    else:
        typer.echo("\n".join(NAMED_AGENTS))


def _study_test_days(name: str, alpha: float | dict[str, float] | None, seed: int) -> "TestDays":
    from ecl2o.exceptions import NotApplicableError
    from ecl2o.paper.test_days import STUDY_TEST_DAYS

    if name not in STUDY_TEST_DAYS:
        raise typer.BadParameter(
            f"no study is called {name!r}; there are {', '.join(STUDY_TEST_DAYS)}.", param_hint="--study"
        )
    if isinstance(alpha, dict):
        raise typer.BadParameter("a study has one alpha, a number.", param_hint="--alpha")
    try:
        return STUDY_TEST_DAYS[name](alpha, seed)
    except NotApplicableError as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None


def _names(agents: str) -> list[str]:
    """Parse --agents; raise before any work if a name is neither an agent nor a policy file."""
    from ecl2o.fitting.named_agents import NAMED_AGENTS, is_policy

    names = list(NAMED_AGENTS) if agents == "all" else [name.strip() for name in agents.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMED_AGENTS and not is_policy(name)]
    if unknown or not names:
        problem = f"no agent is called {unknown[0]!r}" if unknown else "name at least one agent"
        raise typer.BadParameter(
            f"{problem}; there are {', '.join(NAMED_AGENTS)}, and policy files.", param_hint="--agents"
        )
    return names
