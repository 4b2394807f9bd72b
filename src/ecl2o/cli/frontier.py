"""`ecl2o frontier`: what a promise costs, on weather or on one's own series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecl2o.cli import options, output, tables

if TYPE_CHECKING:
    from ecl2o.paper.frontier import Frontier


# A shortage is at least 0 and at most that without renewables, in the units of each pipeline.
_WEATHER_CONTEXTS: dict[str | None, tuple[float, float]] = {"authors-code": (0.0, 0.8), "paper": (0.0, 1.0)}


def frontier(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="A CSV or Parquet file of your own; none: weather.", show_default=False),
    ] = None,
    weather: options.Weather = None,
    preset: options.Preset = None,
    base_shortage: options.BaseShortage = None,
    alpha: options.Alpha = 10.0,
    column: options.Columns = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    period: options.Period = None,
    day_start: options.DayStart = None,
    training_days: options.TrainingDays = None,
    validation_days: options.ValidationDays = None,
    contexts_in: Annotated[
        str | None,
        typer.Option("--contexts", metavar="LOW:HIGH", help="All contexts are known to lie there; known for weather."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Train little: figures of networks mean nothing.")] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the figure and results.json; earlier ones are replaced.")
    ] = Path("frontier"),
    seed: output.Seed = 0,
    json: output.Json = False,
) -> None:
    """Show what a promise costs: average cost against the promised ratio, by the period of the promise, and the worst day.

    In DIR: figures/frontier.png and .svg, and results.json.
    """
    shortage = None if base_shortage is None else options.watts(base_shortage)
    split = options.make_split(training_days, validation_days)
    if data is not None:
        _refuse_given({"--weather": weather, "--preset": preset, "--base-shortage": base_shortage}, "for weather", data)
    else:
        of_series = {"--column": column, "--time-column": time_column, "--period": period, "--training-days": split}
        _refuse_given(of_series, "for a series", weather or "the built-in weather")
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    from ecl2o.data import weather_contexts
    from ecl2o.paper.frontier import FrontierSettings, run_frontier
    from ecl2o.paper.frontier_figures import draw_frontier
    from ecl2o.plots.folder import atomic_folder, write_results

    with atomic_folder(out) as folder, output.progress_bars() as progress:
        if data is None:
            contexts = weather_contexts(weather, preset or options.PRESET, shortage, fill)
        else:
            reading = options.make_reader(data, column, time_column, fill, period, day_start)
            contexts, _ = options.screen_contexts(data, reading.read_split(split))
        interval = options.parse_interval(contexts_in, "--contexts") or _WEATHER_CONTEXTS.get(contexts.preset)
        settings = FrontierSettings(
            alpha, "MLP" if contexts.preset == "paper" else "LSTM", seed, quick, contexts=interval
        )
        found = run_frontier(contexts, settings, progress)
        write_results(folder, found.as_json(), {"frontier": draw_frontier(found)})
    if json:
        output.print_json(found.as_json())
    else:
        _print_table(found)
    output.messages().print(f"figure: {out / 'figures' / 'frontier.png'}", soft_wrap=True)


def _refuse_given(options: dict[str, Any], purpose: str, source: Any) -> None:
    """Refuse options of the other kind of source."""
    given = [name for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)} is {purpose}, but the contexts are those of {source}.")


def _print_table(found: "Frontier") -> None:
    from rich.table import Table

    title = f"What a promise costs: {found.test_days} test days of {found.source['file'] or 'the series'}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in ("promised ratio", "per", "average cost", "worst day", "p99 of days"):
        table.add_column(heading, justify="right")
    for point in found.points:
        promise = "none" if point.promise is None else f"{point.promise:.4g}"
        table.add_row(
            "Competitive, bounded contexts" if point.bounded else "Competitive" if point.per else point.label,
            promise,
            point.per or "",
            f"{point.average_cost:.3f}",
            f"{point.competitive_ratio:.3f}",
            f"{point.p99:.3f}",
        )
    tables.print_table(table)
    alpha, m = found.settings.alpha, 1
    unit = f"average cost: in units of that of the {found.unit}"
    if not found.source["preset"]:
        unit += f", as in fit and evaluate; the daily oracle, the paper's unit, costs {found.daily_oracle:.3f}"
    notes = [
        f"{unit}.",
        f"R-OBD's ratio is exact for constant curvature; where curvature varies it promises {found.varying_ratio:.2f}.",
        f"No online algorithm can promise less than {found.smallest_ratio:.6f} without an end (m = {m}, alpha = {alpha:g}).",
        "A promise holds for its period: the worst single day of a longer one is not bounded.",
    ]
    if found.refused:
        notes.append(
            f"Left out, since no online algorithm can promise them: {', '.join(f'{ratio:g}' for ratio in found.refused)}."
        )
    for note in notes:
        output.results().print(note, soft_wrap=True)
