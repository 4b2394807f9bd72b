"""`ecl2o sweep`: the whole trade-off of a study, every setting on a grid, as one job."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ecl2o.cli import options, output, tables

if TYPE_CHECKING:
    from ecl2o.paper.sweep_grid import Grid, Setting

_QUICK_STEPS, _STEPS = 300, 4000


def sweep(
    weather: options.Weather = None,
    preset: options.Preset = None,
    base_shortage: options.BaseShortage = None,
    network: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="lstm, mlp or lstm,mlp; the preset's (lstm, paper: mlp) unless given."),
    ] = None,
    trust: Annotated[str | None, typer.Option(metavar="NUMBERS", help="EC-L2O's trusts, as in 0.1,0.3,0.5.")] = None,
    mu: Annotated[str | None, typer.Option(metavar="NUMBERS", help="EC-L2O's weights of the prediction error.")] = None,
    rho_bar: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="EC-L2O's thresholds: zero, half, mean, of the two-stage advisor's mean error."
        ),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="NAMES", help="The unit of costs in EC-L2O's loss: raw, oracle, window.")
    ] = None,
    kappa: Annotated[str | None, typer.Option(metavar="NUMBERS", help="PureML's weights of the ratio.")] = None,
    gamma: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Switch's factors.")] = None,
    ratio: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Promises of the guarded regression.")] = None,
    period: Annotated[
        str | None, typer.Option(metavar="DAYS", help="Days after which a promise restarts; 0: never.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--open", help="All that the paper's text leaves open: every threshold and every scale.")
    ] = False,
    alpha: options.Alpha = 10.0,
    seeds: Annotated[
        int,
        typer.Option(min=1, max=output.MOST_SEEDS, metavar="N", help="How many seeds each setting is trained with."),
    ] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Train little: figures of networks mean nothing.")] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for table, figure and results.json; earlier ones are replaced.")
    ] = Path("sweep"),
    scheduler: options.Scheduler = None,
    workers: options.Workers = None,
    seed: output.Seed = 0,
    json: output.Json = False,
) -> None:
    """Train and test every setting of the study's algorithms, and show which nothing beats.

    In DIR: sweep.parquet, a row for each setting and seed; results.json, means and spreads, fronts, and what the validation days
    choose; figures/.
    """
    axes = {"trusts": trust, "mus": mu, "kappas": kappa, "gammas": gamma, "ratios": ratio, "periods": period}
    names = {"rho_bars": rho_bar, "cost_scales": scale, "networks": network or ("mlp" if preset == "paper" else "lstm")}
    shortage: Any = None if base_shortage is None else options.watts(base_shortage)
    options.require_parquet()
    grid = _grid(axes, names, tuple(range(seed, seed + seeds)), everything)
    options.set_up_jax(workers)
    from ecl2o.data import weather_contexts
    from ecl2o.paper.report import write_sweep
    from ecl2o.paper.sweep import SweepData, summarize_results
    from ecl2o.paper.sweep import run_sweep_on as run
    from ecl2o.plots.folder import atomic_folder

    started = time.perf_counter()
    with (
        atomic_folder(out) as folder,
        options.client(scheduler, workers) as client,
        output.progress_bars() as progress,
    ):
        contexts = weather_contexts(weather, preset or options.PRESET, shortage)
        steps = _QUICK_STEPS if quick else _STEPS
        records = run(SweepData.of(contexts, alpha, steps), grid, client, progress)
        found = summarize_results(records, grid, contexts, alpha, steps) | {"seconds": time.perf_counter() - started}
        write_sweep(records, found, grid.networks, folder)
    if json:
        output.print_json(found)
    else:
        _print_table(found)
    _tell_left_out(grid, {record.setting for record in records})
    output.messages().print(f"table: {out / 'sweep.parquet'}", soft_wrap=True)


def _tell_left_out(grid: "Grid", scored: "set[Setting]") -> None:
    """Say which promises were asked for and have no row."""
    missing = [setting for setting in grid.guarded() if setting not in scored]
    if missing:
        said = ", ".join(f"{s.ratio:g} {f'per {s.period} days' if s.period else 'for good'}" for s in missing)
        output.messages().print(f"left out, since no online algorithm can promise them: {said}.", soft_wrap=True)


_OPTIONS = {"trusts": "--trust", "mus": "--mu", "kappas": "--kappa", "gammas": "--gamma", "ratios": "--ratio"}
_OPTIONS |= {"periods": "--period", "rho_bars": "--rho-bar", "cost_scales": "--scale", "networks": "--network"}


def _grid(
    axes: dict[str, str | None], names: dict[str, str | None], seeds: tuple[int, ...], everything: bool
) -> "Grid":
    """The grid that was asked for."""
    from ecl2o.paper.sweep_grid import Grid, Network, RhoBar, ScaleName

    known = {"rho_bars": get_args(RhoBar), "cost_scales": get_args(ScaleName), "networks": get_args(Network)}
    values: dict[str, Any] = {name: _numbers(name, text) for name, text in axes.items() if text is not None}
    for name, text in names.items():
        if text is not None:
            values[name] = tuple(part.strip() for part in text.split(","))
            unknown = [part for part in values[name] if part not in known[name]]
            if unknown:
                raise typer.BadParameter(
                    f"must be among {', '.join(known[name])}, got {unknown[0]!r}.", param_hint=_OPTIONS[name]
                )
    base = Grid(seeds=seeds).everything_open() if everything else Grid(seeds=seeds)
    try:
        return base.with_axes(**values)
    except ValueError as error:  # which begins with the name of an axis, where it is about one
        raise typer.BadParameter(str(error), param_hint=_OPTIONS.get(str(error).split()[0])) from None


def _numbers(name: str, text: str) -> tuple[float | int, ...]:
    kind = int if name == "periods" else float
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"must be numbers with commas between them, got {text!r}.", param_hint=_OPTIONS[name]
        ) from None


def _print_table(found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        title=f"Settings that no other of their family beats, {found['source']['file']}", title_justify="left"
    )
    table.add_column("")
    table.add_column("setting")
    for heading in ("average cost", "competitive ratio"):
        table.add_column(heading, justify="right")
    for front in found["fronts"]:
        for point in front["points"]:
            setting = ", ".join(f"{name} {value}" for name, value in point["setting"].items() if name != "family")
            cost, ratio = (f"{point[name]:.3f} ± {point[name + '_std']:.3f}" for name in ("test_cost", "test_ratio"))
            table.add_row(point["setting"]["family"], setting, cost, ratio)
    tables.print_table(table)
    for network, made in found["choices"].items():
        for choice in made:
            setting = ", ".join(f"{k} {v}" for k, v in choice["setting"].items() if k not in ("family", "network"))
            cost, ratio = choice["test_cost"], choice["test_ratio"]
            note = f"{network}, {choice['rule']}: {setting}; cost {cost:.3f}, ratio {ratio:.2f} on the test days."
            output.results().print(note, soft_wrap=True)
        output.results().print(_below(network, found["below_pure_ml"][network]), soft_wrap=True)


def _below(network: str, below: dict[str, Any]) -> str:
    """What can be had below PureML's cost."""
    if below["safest"] is None:
        return (
            f"{network}: none of EC-L2O's {below['settings']} settings costs less than PureML-0, {below['cost']:.3f}."
        )
    safest = below["safest"]
    return (
        f"{network}: {below['below']} of EC-L2O's {below['settings']} settings cost less than PureML-0, {below['cost']:.3f}; "
        f"none of them has a ratio below {safest['test_ratio']:.2f}."
    )
