"""`ecl2o alpha`: show what different alphas mean for a series."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecl2o.cli import options, output, tables

if TYPE_CHECKING:
    from ecl2o.fitting.alpha_study import AlphaStudy


def alpha(
    data: options.Series,
    alphas: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Alphas to try, separated by commas. (default: 0.1 to 1000)")
    ] = None,
    miss_price: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Price of a miss of some size for one step.")
    ] = None,
    ramp_price: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Price of a change of the same size.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for a figure, ending in .png, .svg or .pdf.")
    ] = None,
    column: options.Columns = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    """Show how far actions miss and move for different alphas, in hindsight and under R-OBD.

    A step costs 1/2 |miss|^2 + alpha/2 |change|^2: a change is alpha times as expensive as a miss of the same size. If you know
    both prices, give --miss-price and --ramp-price. If you know how fast you can move, look at the largest change.
    """
    if (miss_price is None) != (ramp_price is None):
        raise typer.BadParameter("give both --miss-price and --ramp-price, or neither.")
    wanted = None if alphas is None else _numbers(alphas)
    if figure is not None:
        output.check_writable(figure, "--figure")
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    from ecl2o.fitting.alpha_study import ALPHAS, alpha_from_prices, study_alphas
    from ecl2o.fitting.read import screen_values

    yours = None if miss_price is None or ramp_price is None else alpha_from_prices(miss_price, ramp_price)
    frame, metadata = options.make_reader(data, column, time_column, fill).read_rows()
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
        output.print_json({"data": str(data), "your_alpha": yours, "rows": _as_json(found)})
    else:
        _print(found, yours, data.name)


def _numbers(text: str) -> list[float]:
    try:
        return [float(entry) for entry in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"must be numbers separated by commas, got {text!r}.", param_hint="--alphas") from None


def _as_json(found: "AlphaStudy") -> list[dict[str, Any]]:
    import dataclasses

    return [dataclasses.asdict(row) for row in found.rows]


def _print(found: "AlphaStudy", yours: float | None, name: str) -> None:
    from rich.table import Table

    figures = [
        [
            figure
            for followed in (row.hindsight, row.expert)
            for figure in (followed.miss, followed.move, followed.largest_move)
        ]
        for row in found.rows
    ]
    numbers = tables.NumberFormat.of(figure for row in figures for figure in row)
    unit = f"{numbers.unit} of the units" if numbers.unit else "the units"
    table = Table(title=f"{name}: misses and changes per step, in {unit} of the file", title_justify="left")
    table.add_column("alpha", justify="right")
    for who in ("hindsight:", "R-OBD:"):
        for what in ("mean miss", "mean change", "largest change"):
            table.add_column(f"{who}\n{what}", justify="right")
    for row, cells in zip(found.rows, figures, strict=True):
        table.add_row(f"{row.alpha:g}{' <' if row.alpha == yours else ''}", *map(numbers.text, cells))
    say = output.results().print
    tables.print_table(table)
    if yours is not None:
        say(f"your prices: alpha = {yours:g} (<).")
    say(
        "hindsight knows the whole series; R-OBD knows only the past, and has the best possible worst case. How to choose: if a "
        "miss of some size costs A for one step and a change of that size costs B, alpha is B / A (--miss-price A --ramp-price "
        "B). If you cannot move faster than R per step, take the smallest alpha whose largest change is below R. If in doubt, "
        "take the smallest alpha whose changes you can accept. Avoiding one unit of squared change costs about alpha units of "
        "squared miss.",
    )
