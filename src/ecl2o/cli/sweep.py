"""`ecl2o sweep`: the whole trade-off of a study, every setting on a grid, as one job."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ecl2o.cli import options, output, tables
from ecl2o.cli.options import option, usage_error

if TYPE_CHECKING:
    from ecl2o.paper.sweep_grid import Grid, Setting

_QUICK_STEPS, _STEPS = 300, 4000
_OPTIONS = ("network", "trust", "mu", "rho-bar", "scale", "kappa", "gamma", "ratio", "period")
_AXES = {f"--{name}": f"{name.replace('-', '_')}s" for name in _OPTIONS} | {"--scale": "cost_scales"}  # of the grid


def sweep(
    weather: Path | None = options.WEATHER,
    preset: options.Preset = options.PRESET,
    base_shortage: str | None = options.BASE_SHORTAGE,
    network: str | None = option("lstm, mlp or lstm,mlp. (default: lstm; mlp for --preset paper)", metavar="KINDS"),
    trust: str | None = option("EC-L2O's trusts, as in 0.1,0.3,0.5.", metavar="NUMBERS"),
    mu: str | None = option("EC-L2O's weights of the prediction error.", metavar="NUMBERS"),
    rho_bar: str | None = option("EC-L2O's thresholds: zero, half or mean two-stage error.", metavar="NAMES"),
    scale: str | None = option("Units of costs in EC-L2O's loss: raw, oracle, window.", metavar="NAMES"),
    kappa: str | None = option("PureML's weights of the ratio.", metavar="NUMBERS"),
    gamma: str | None = option("Switch's factors.", metavar="NUMBERS"),
    ratio: str | None = option("Promises of the guarded regression.", metavar="NUMBERS"),
    period: str | None = option("Days after which a promise restarts; 0: never.", metavar="DAYS"),
    everything: bool = option("Try every threshold and every unit of costs.", "--open", default=False),
    alpha: float = options.ALPHA,
    seeds: int = option("Number of seeds to train with.", default=2, min=1, max=output.MOST_SEEDS, metavar="N"),
    quick: bool = options.QUICK,
    out: Path = option(
        "Folder for table, figure and results.json; replaces an earlier one.", default=Path("sweep"), metavar="DIR"
    ),
    scheduler: str | None = options.SCHEDULER,
    workers: int | None = options.WORKERS,
    seed: output.Seed = 0,
    json: output.Json = False,
) -> None:
    """Train and test every setting of the study's algorithms, and show those that no other setting beats.

    DIR receives sweep.parquet, a row for each setting and seed; results.json: means and spreads, Pareto fronts, and the
    settings that the validation days select; figures/.
    """
    network = network or ("mlp" if preset == "paper" else "lstm")
    texts = (network, trust, mu, rho_bar, scale, kappa, gamma, ratio, period)
    shortage = options.parse_watts(base_shortage)
    given = {name: text for name, text in zip(_AXES, texts, strict=True) if text is not None}
    grid = _make_grid(given, tuple(range(seed, seed + seeds)), everything)
    options.set_up_jobs(workers)
    from ecl2o.data import weather_contexts
    from ecl2o.paper.report import write_sweep
    from ecl2o.paper.sweep import SweepData, run_sweep, summarize_results
    from ecl2o.plots.folder import atomic_folder

    started = time.perf_counter()
    cluster = options.client(scheduler, workers)
    with atomic_folder(out) as folder, cluster as client, output.progress_bars() as progress:
        contexts = weather_contexts(weather, preset or options.DEFAULT_PRESET, shortage)
        steps = _QUICK_STEPS if quick else _STEPS
        records = run_sweep(SweepData.of(contexts, alpha, steps), grid, client, progress)
        found = summarize_results(records, grid, contexts, alpha, steps) | {"seconds": time.perf_counter() - started}
        write_sweep(records, found, grid.networks, folder)
    if json:
        output.print_json(found)
    else:
        _print_table(found)
    _report_left_out(grid, {record.setting for record in records})
    tables.print_message(f"table: {out / 'sweep.parquet'}")


def _report_left_out(grid: "Grid", scored: "set[Setting]") -> None:
    """Print which promises were requested and have no row."""
    missing = [setting for setting in grid.guarded() if setting not in scored]
    if missing:
        text = ", ".join(f"{s.ratio:g} {f'per {s.period} days' if s.period else 'for the whole run'}" for s in missing)
        tables.print_message(f"left out, since no online algorithm can promise them: {text}.")


def _make_grid(given: dict[str, str], seeds: tuple[int, ...], everything: bool) -> "Grid":
    """Return the grid of the options."""
    from ecl2o.paper.sweep_grid import Grid, Network, RhoBar, ScaleName

    names = {"--rho-bar": get_args(RhoBar), "--scale": get_args(ScaleName), "--network": get_args(Network)}
    values: dict[str, Any] = {_AXES[name]: names[name] for name in ("--rho-bar", "--scale") if everything}
    for name, text in given.items():
        if name in names:
            parts = [part.strip() for part in text.split(",")]
            unknown = [part for part in parts if part not in names[name]]
            if unknown:
                raise usage_error(name, f"must be among {', '.join(names[name])}, got {unknown[0]!r}.")
        else:
            parts = options.parse_numbers(text, name, int if name == "--period" else float)
        values[_AXES[name]] = tuple(parts)
    try:
        return Grid(seeds=seeds, **values)
    except ValueError as error:  # it starts with the name of an axis
        named = [name for name, axis in _AXES.items() if str(error).startswith(f"{axis} ")]
        raise usage_error("".join(named) or "--seeds", str(error)) from None


def _print_table(found: dict[str, Any]) -> None:
    rows = []
    for point in (point for front in found["fronts"] for point in front["points"]):
        figures = (f"{point[name]:.3f} ± {point[name + '_std']:.3f}" for name in ("test_cost", "test_ratio"))
        rows.append((point["setting"]["family"], _describe(point["setting"], "family"), *figures))
    notes = []
    for network, made in found["choices"].items():
        for choice in made:
            setting, cost, ratio = choice["setting"], choice["test_cost"], choice["test_ratio"]
            setting = _describe(setting, "family", "network")
            notes.append(f"{network}, {choice['rule']}: {setting}; cost {cost:.3f}, ratio {ratio:.2f} on test days.")
        notes.append(f"{network}: {_describe_cheaper(found['below_pure_ml'][network])}")
    title = f"Settings that no other of their family beats, {found['source']['file']}"
    columns = ("", "setting", "average cost", "competitive ratio")
    tables.print_rows(title, columns, rows, words=columns[:2], notes=notes)


def _describe(setting: dict[str, Any], *without: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in setting.items() if name not in without)


def _describe_cheaper(below: dict[str, Any]) -> str:
    """Return how many of EC-L2O's settings are cheaper than PureML, and the safest of them."""
    settings, cost, safest = below["settings"], below["cost"], below["safest"]
    if safest is None:
        return f"none of EC-L2O's {settings} settings costs less than PureML-0, {cost:.3f}."
    return (
        f"{below['below']} of EC-L2O's {settings} settings cost less than PureML-0, {cost:.3f}; none of them has a ratio below "
        f"{safest['test_ratio']:.2f}."
    )
