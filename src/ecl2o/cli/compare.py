"""`ecl2o compare`: agents and policies on the same days."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ecl2o.cli import comparison_table, options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import option, usage_error

if TYPE_CHECKING:
    from ecl2o.evaluation import TestDays

_DEFAULT = "greedy,r-obd,obd,ogd,lai,rhc,chc,competitive-rhc"


@options.expand_options()
def compare(
    data: Annotated[
        Path | None, typer.Argument(metavar="[DATA]", help="CSV or Parquet file; or give --study.", show_default=False)
    ] = None,
    *,
    study: str | None = option(
        "Built-in problem: demand-response, right-sizing, varying-curvature, prices or prices-tariff."
    ),
    agents: str = option(
        "Names and policy files, separated by commas; 'all' for all that need no training, 'list' to list them.",
        default=_DEFAULT,
    ),
    alpha: str | None = option(
        "Cost of moving: alpha/2 times the squared change. One number, or one per column of a file: demand=10,price=3. "
        "(default: 10, or the study's own)",
        metavar=options.NUMBERS_BY_COLUMN,
    ),
    forecaster: Literal["rolling-profile", "seasonal-naive", "persistence", "given", "exact"] = option(
        "Forecaster of the planners; given reads --forecast, exact knows the future.", default="rolling-profile"
    ),
    days: int | None = options.DAYS,
    costs: options.CostOptions,
    reading: options.ReadingOptions,
    unit_cost: float | None = options.UNIT_COST,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Run agents on the same days, and print one table: average cost, worst day, tail, microseconds per step.

    An agent that does not apply to the problem gets a row without figures, and a note below the table says why.
    """
    if agents == "list":
        from ecl2o.fitting.named_agents import NAMED_AGENTS

        return output.print_json(list(NAMED_AGENTS)) if json else typer.echo("\n".join(NAMED_AGENTS))
    if (data is None) == (study is None):
        raise usage_error("DATA", "give either a file or --study.")
    own = {"--weight-column": reading.weight_column, "--bounds": costs.bounds, "--ramp": costs.ramp}
    for name, value in (own | {"--step": costs.step, "--whole": costs.whole or None}).items():
        if study is not None and value is not None:
            raise usage_error(name, "applies to a file; a study has its own costs and actions.")
    movement = None if alpha is None else options.parse_alpha(alpha)
    costs.check_weights(reading)
    use_cached_programs()
    from ecl2o.evaluation.comparison import compare as compare_days
    from ecl2o.fitting.named_agents import is_policy, make_contenders
    from ecl2o.fitting.tasks import last_test_days, series_test_days
    from ecl2o.policy import load

    names, replaced, contexts = _names(agents), (), None
    if study is not None:
        test_days = last_test_days(_study_test_days(study, movement, seed), days)
    else:
        assert data is not None
        reader = reading.make_reader(data)
        for policy in filter(is_policy, names):  # the first that knows how to read the file decides
            reader = reader.for_policy(load(policy))
        contexts, replaced = options.screen_contexts(data, reader.read_days())
        test_days = series_test_days(contexts, costs.make_settings(movement or 10.0), days)
    leads = () if contexts is None else contexts.leads
    if forecaster == "given" and not any(leads):
        raise usage_error("--forecaster", "given needs --forecast, and one column to follow.")
    contenders = make_contenders(names, test_days, forecaster, leads)
    with output.progress_bars(not json) as progress:
        rows = compare_days(contenders, test_days, lambda done, total: progress("comparing", done, total), timed=True)
    refused = {row.name: row.not_applicable for row in rows if row.not_applicable is not None}
    if len(refused) == len(contenders):
        name, reason = next(iter(refused.items()))
        raise ValueError(f"no agent applies; {name}: {reason}")
    used, n_days = movement if isinstance(movement, dict) else float(test_days.problem.alpha), test_days.days.shape[0]
    if json:
        found = {"contexts": study or str(data), "days": n_days, "alpha": used, "forecaster": forecaster}
        figures = {row.name: row.as_json() for row in rows}
        found |= {
            "days_not_scored": test_days.not_scored,
            "screened": len(replaced),
            "agents": figures,
            "not_applicable": refused,
        }
        return output.print_json(found)
    if contexts is not None:
        options.print_series(contexts.metadata)
    shown = alpha if isinstance(used, dict) else f"{used:.3g}"
    title = f"{n_days} days of {study or data}, alpha = {shown}, forecaster: {forecaster}"
    live = comparison_table.live_columns(rows)
    comparison_table.print_comparison(rows, title, test_days.problem, unit_cost, after=live)
    return tables.print_notes(comparison_table.describe_not_scored(test_days))


def _study_test_days(name: str, alpha: float | dict[str, float] | None, seed: int) -> "TestDays":
    from ecl2o.exceptions import NotApplicableError
    from ecl2o.paper.test_days import STUDY_TEST_DAYS

    if name not in STUDY_TEST_DAYS:
        raise usage_error("--study", f"no study is called {name!r}; there are {', '.join(STUDY_TEST_DAYS)}.")
    if isinstance(alpha, dict):
        raise usage_error("--alpha", "a study has one alpha, a number.")
    try:
        return STUDY_TEST_DAYS[name](alpha, seed)
    except NotApplicableError as error:
        raise usage_error("--alpha", str(error)) from None


def _names(agents: str) -> list[str]:
    """Parse --agents; raise before any work if a name is neither an agent nor a policy file."""
    from ecl2o.fitting.named_agents import NAMED_AGENTS, is_policy

    names = list(NAMED_AGENTS) if agents == "all" else [name.strip() for name in agents.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMED_AGENTS and not is_policy(name)]
    if unknown or not names:
        problem = f"no agent is called {unknown[0]!r}" if unknown else "name at least one agent"
        raise usage_error("--agents", f"{problem}; there are {', '.join(NAMED_AGENTS)}, and policy files.")
    return names
