"""`ecl2o frontier`: what a promise costs, on weather or on one's own series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecl2o.cli import options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import option

if TYPE_CHECKING:
    from ecl2o.paper.frontier import Frontier

# A shortage is at least 0 and at most that without renewables, in the units of each pipeline.
_WEATHER_CONTEXTS: dict[str | None, tuple[float, float]] = {"authors-code": (0.0, 0.8), "paper": (0.0, 1.0)}


@options.expand_options("covariate", "forecast", "weight_column")
def frontier(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA", help="CSV or Parquet file of your series. (default: weather)", show_default=False
        ),
    ] = None,
    *,
    weather: Path | None = options.WEATHER,
    preset: options.Preset = options.PRESET,
    base_shortage: str | None = options.BASE_SHORTAGE,
    alpha: float = options.ALPHA,
    reading: options.ReadingOptions,
    training_days: int | None = options.TRAINING_DAYS,
    validation_days: int | None = options.VALIDATION_DAYS,
    contexts_in: str | None = option(
        "Range of all contexts, if known. (default: that of weather)", "--contexts", metavar="LOW:HIGH"
    ),
    networks: bool = option(
        "Also train networks: PureML, MLA-ROBD and EC-L2O. They take most of the time.", "--networks", default=False
    ),
    quick: bool = options.QUICK,
    out: Path = option(
        "Folder for figure and results.json; replaces an earlier one.", default=Path("frontier"), metavar="DIR"
    ),
    seed: output.Seed = 0,
    json: output.Json = False,
) -> None:
    """Show what a promise costs: average cost against the promised ratio, by the period of the promise, and the worst day.

    DIR receives figures/frontier.png and .svg, and results.json.
    """
    shortage = options.parse_watts(base_shortage)
    split = options.make_split(training_days, validation_days)
    if data is not None:
        _check_absent({"--weather": weather, "--preset": preset, "--base-shortage": base_shortage}, "weather", data)
    else:
        names = ("column", "time_column", "period", "time_zone", "fill_limit")
        of_series = {f"--{name.replace('_', '-')}": getattr(reading, name) for name in names}
        of_series |= {"--training-days": split}
        _check_absent(of_series, "a series", weather or "the built-in weather")
    interval = options.parse_interval(contexts_in, "--contexts")
    use_cached_programs()
    from ecl2o.data import weather_contexts
    from ecl2o.paper.frontier import FrontierSettings, run_frontier
    from ecl2o.paper.frontier_figures import draw_frontier
    from ecl2o.plots.folder import atomic_folder, write_results

    with atomic_folder(out) as folder, output.progress_bars() as progress:
        if data is None:
            contexts = weather_contexts(weather, preset or options.DEFAULT_PRESET, shortage, reading.fill)
        else:
            contexts, _ = options.screen_contexts(data, reading.make_reader(data).read_split(split))
        network = None if not networks else "MLP" if contexts.preset == "paper" else "LSTM"
        interval = interval or _WEATHER_CONTEXTS.get(contexts.preset)
        found = run_frontier(contexts, FrontierSettings(alpha, network, seed, quick, contexts=interval), progress)
        write_results(folder, found.as_json(), {"frontier": draw_frontier(found)})
    if json:
        output.print_json(found.as_json())
    else:
        if data is not None:
            options.print_series(contexts.metadata)
        _print_table(found)
    tables.print_message(f"figure: {out / 'figures' / 'frontier.png'}")


def _check_absent(given: dict[str, Any], purpose: str, source: Any) -> None:
    """Raise if an option of the other kind of source was given."""
    names = [name for name, value in given.items() if value]
    if names:
        raise typer.BadParameter(f"{', '.join(names)} applies to {purpose}, but the contexts are those of {source}.")


def _print_table(found: "Frontier") -> None:
    rows = [
        (
            "Competitive, bounded contexts" if point.bounded else "Competitive" if point.per else point.label,
            "none" if point.promised_ratio is None else f"{point.promised_ratio:.4g}",
            point.per or "",
            *(f"{figure:.3f}" for figure in (point.average_cost, point.competitive_ratio, point.p99)),
        )
        for point in found.points
    ]
    unit = f"average cost: in units of that of the {found.unit}"
    if not found.source["preset"]:
        unit += f", as in fit and evaluate; the daily oracle, the paper's unit, costs {found.daily_oracle:.3f}"
    notes = [
        f"{unit}.",
        f"R-OBD's ratio is exact for constant curvature; where curvature varies it promises {found.varying_curvature_ratio:.2f}.",
        f"No online algorithm can promise less than {found.smallest_ratio:.6f} over runs of any length (m = 1, alpha = "
        f"{found.settings.alpha:g}).",
        "A promise holds for its period: the worst single day of a longer one is not bounded.",
    ]
    if found.refused_ratios:
        ratios = ", ".join(f"{ratio:g}" for ratio in found.refused_ratios)
        notes.append(f"Left out, since no online algorithm can promise them: {ratios}.")
    title = f"What a promise costs: {found.test_days} test days of {found.source['file'] or 'the series'}"
    columns = ("", "promised ratio", "per", "average cost", "worst day", "p99 of days")
    tables.print_rows(title, columns, rows, notes=notes)
