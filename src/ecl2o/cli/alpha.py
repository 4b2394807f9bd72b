"""`ecl2o alpha`: show what different alphas mean for a series."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ecl2o.cli import options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import option

if TYPE_CHECKING:
    from ecl2o.fitting.alpha_study import AlphaStudy

_HOW_TO_CHOOSE = (
    "hindsight knows the whole series; R-OBD knows only the past, and has the best possible worst case. How to choose: if a "
    "miss of some size costs A for one step and a change of that size costs B, alpha is B / A (--miss-price A --ramp-price B). "
    "If you cannot move faster than R per step, take the smallest alpha whose largest change is below R. If in doubt, take the "
    "smallest alpha whose changes you can accept. Avoiding one unit of squared change costs about alpha units of squared miss."
)


@options.expand_options("covariate", "forecast", "weight_column", "period", "day_start")
def alpha(
    data: options.Series,
    *,
    alphas: str | None = option("Alphas to try, separated by commas. (default: 0.1 to 1000)", metavar="A,B,..."),
    miss_price: float | None = option("Price of a miss of some size for one step.", metavar="PRICE"),
    ramp_price: float | None = option("Price of a change of the same size.", metavar="PRICE"),
    figure: Path | None = option("File for a figure, ending in .png, .svg or .pdf.", metavar="FILE"),
    reading: options.ReadingOptions,
    json: output.Json = False,
) -> None:
    """Show how far actions miss and move for different alphas, in hindsight and under R-OBD.

    A step costs 1/2 |miss|^2 + alpha/2 |change|^2: a change is alpha times as expensive as a miss of the same size. If you know
    both prices, give --miss-price and --ramp-price. If you know how fast you can move, look at the largest change.
    """
    if (miss_price is None) != (ramp_price is None):
        raise typer.BadParameter("give both --miss-price and --ramp-price, or neither.")
    wanted = None if alphas is None else options.parse_numbers(alphas, "--alphas")
    if figure is not None:
        output.check_writable(figure, "--figure")
    use_cached_programs()
    from ecl2o.fitting.alpha_study import ALPHAS, alpha_from_prices, study_alphas
    from ecl2o.fitting.read import screen_values

    yours = None if miss_price is None or ramp_price is None else alpha_from_prices(miss_price, ramp_price)
    frame, metadata = reading.make_reader(data).read_rows()
    values, replaced = screen_values(frame.to_numpy(float), metadata.steps_per_day)
    options.report_replaced(data, frame.index, replaced)
    found = study_alphas(values, [*(wanted or ALPHAS), *([] if yours is None else [yours])], data.name)
    if figure is not None:
        import pandas as pd

        from ecl2o.plots.series import draw_alphas
        from ecl2o.plots.style import save_figure

        unit = metadata.columns[0] if len(metadata.columns) == 1 else "units of the file"
        save_figure(draw_alphas(found, pd.DatetimeIndex(frame.index[1:]), metadata.steps_per_day, unit), figure)
    if json:
        rows = [dataclasses.asdict(row) for row in found.rows]
        output.print_json({"data": str(data), "your_alpha": yours, "rows": rows})
    else:
        options.print_series(metadata)
        _print(found, yours, data.name)


def _print(found: "AlphaStudy", yours: float | None, name: str) -> None:
    measures = ("miss", "move", "largest_move")
    figures = [[getattr(each, name) for each in (row.hindsight, row.expert) for name in measures] for row in found.rows]
    numbers = tables.NumberFormat.of(figure for row in figures for figure in row)
    unit = f"{numbers.unit} of the units" if numbers.unit else "the units"
    what = ("mean miss", "mean change", "largest change")
    columns = ["alpha", *(f"{who}\n{figure}" for who in ("hindsight:", "R-OBD:") for figure in what)]
    rows = [
        [f"{row.alpha:g}{' <' if row.alpha == yours else ''}", *map(numbers.text, cells)]
        for row, cells in zip(found.rows, figures, strict=True)
    ]
    tables.print_rows(f"{name}: misses and changes per step, in {unit} of the file", columns, rows)
    if yours is not None:
        output.results().print(f"your prices: alpha = {yours:g} (<).")
    output.results().print(_HOW_TO_CHOOSE)
