"""`ecl2o sweep`: the whole trade-off of a study, every setting on a grid, as one job."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ecl2o.cli import options, output, tables
from ecl2o.cli.options import option, usage_error
from ecl2o.paper.sweep_grid import Protocol

if TYPE_CHECKING:
    from ecl2o.paper.sweep_grid import Grid, Setting

_QUICK_STEPS, _STEPS = 300, 4000
# The paper's main comparison: six seeds, both networks and protocols, from the authors' P_s to ten times as much.
_HEADLINE = {
    "--network": "lstm,mlp",
    "--trust": "0.1,0.3,0.5",
    "--mu": "0,0.1,0.6",
    "--kappa": "0",
    "--ratio": "2.5",
    "--period": "1",
}
_HEADLINE_SEEDS, _HEADLINE_SHORTAGES = 6, (1.0, 1.5, 2.5, 5.0, 10.0)  # in units of the preset's P_s
_OPTIONS = ("network", "trust", "mu", "rho-bar", "scale", "kappa", "gamma", "ratio", "period")
_AXES = {f"--{name}": f"{name.replace('-', '_')}s" for name in _OPTIONS} | {"--scale": "cost_scales"}  # of the grid


def sweep(
    weather: Path | None = options.WEATHER,
    preset: options.Preset = options.PRESET,
    base_shortage: list[str] | None = options.BASE_SHORTAGES,
    network: str | None = option("lstm, mlp or lstm,mlp. (default: lstm; mlp for --preset paper)", metavar="KINDS"),
    trust: str | None = option("EC-L2O's trusts, as in 0.1,0.3,0.5.", metavar="NUMBERS"),
    mu: str | None = option("EC-L2O's weights of the prediction error.", metavar="NUMBERS"),
    rho_bar: str | None = option("EC-L2O's thresholds: zero, half or mean two-stage error.", metavar="NAMES"),
    scale: str | None = option("Units of costs in EC-L2O's loss: raw, oracle, window, authors.", metavar="NAMES"),
    kappa: str | None = option("PureML's weights of the ratio.", metavar="NUMBERS"),
    gamma: str | None = option("Switch's factors.", metavar="NUMBERS"),
    ratio: str | None = option("Promises of the guarded regression.", metavar="NUMBERS"),
    period: str | None = option("Days after which a promise restarts; 0: never.", metavar="DAYS"),
    everything: bool = option("Try every threshold and every unit of costs of this grid.", "--open", default=False),
    schedule: Literal["cosine", "authors"] = option(
        "cosine, or authors: every network at the authors' learning rates, and EC-L2O with their loss.",
        default="cosine",
    ),
    protocol: str | None = option(
        "daily: memory restarts at midnight; streamed: all days are one sequence; or both, with a comma. (default: daily; "
        "both with --headline)",
        metavar="NAMES",
    ),
    augment: str | None = option(
        "Add changed copies of the training windows: scale, start, shift, spells.", metavar="NAMES"
    ),
    headline: bool = option(
        "Run the paper's main comparison: six shortages, both networks and protocols, six seeds. Other options override it.",
        "--headline",
        default=False,
    ),
    alpha: float = options.ALPHA,
    seeds: int | None = option(
        "Number of seeds to train with. (default: 2; 6 with --headline)", min=1, max=output.MOST_SEEDS, metavar="N"
    ),
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
    texts = (network, trust, mu, rho_bar, scale, kappa, gamma, ratio, period)
    shortages = [options.parse_watts(text) for text in base_shortage or ()]
    given = {name: text for name, text in zip(_AXES, texts, strict=True) if text is not None}
    given = {"--network": "mlp" if preset == "paper" else "lstm"} | (_HEADLINE if headline else {}) | given
    seeds = seeds or (_HEADLINE_SEEDS if headline else 2)
    grid = _make_grid(given, tuple(range(seed, seed + seeds)), everything, schedule)
    protocols = _parse_names("--protocol", protocol or ("daily,streamed" if headline else "daily"), get_args(Protocol))
    from ecl2o.data import weather_contexts
    from ecl2o.data.augmentation import AUGMENTATIONS
    from ecl2o.data.shortage import AUTHORS_BASE_SHORTAGE, PAPER_BASE_SHORTAGE
    from ecl2o.paper.report import write_sweep
    from ecl2o.paper.sweep import SweepData, run_sweep, summarize_results
    from ecl2o.plots.folder import atomic_folder

    kinds = () if augment is None else _parse_names("--augment", augment, AUGMENTATIONS)
    options.set_up_jobs(workers)
    started = time.perf_counter()
    cluster = options.client(scheduler, workers)
    with atomic_folder(out) as folder, cluster as client, output.progress_bars() as progress:
        steps, records, contexts = _QUICK_STEPS if quick else _STEPS, [], None
        if headline and not shortages:
            own = PAPER_BASE_SHORTAGE if preset == "paper" else AUTHORS_BASE_SHORTAGE
            shortages = [*(own * factor for factor in _HEADLINE_SHORTAGES), "p99"]
        for shortage in shortages or [None]:
            each = weather_contexts(weather, preset or options.DEFAULT_PRESET, shortage)
            contexts = contexts or each
            records += run_sweep(SweepData.of(each, alpha, steps, protocols, kinds), grid, client, progress)
        assert contexts is not None
        about = {"protocols": protocols, "augment": kinds, "seconds": time.perf_counter() - started}
        found = summarize_results(records, grid, contexts, alpha, steps) | about
        write_sweep(records, found, grid.networks, folder)
    if json:
        output.print_json(found)
    else:
        _print_table(found)
    _report_left_out(grid, {record.setting for record in records})
    tables.print_message(f"table: {out / 'sweep.parquet'}")


def _report_left_out(grid: "Grid", scored: "set[Setting]") -> None:
    """Print which promises were requested and have no row."""
    found = {(setting.ratio, setting.period) for setting in scored}
    missing = [setting for setting in grid.guarded() if (setting.ratio, setting.period) not in found]
    if missing:
        text = ", ".join(f"{s.ratio:g} {f'per {s.period} days' if s.period else 'for the whole run'}" for s in missing)
        tables.print_message(
            f"left out: {text}. No online algorithm can promise it, or it lasts longer than a day and needs --protocol streamed."
        )


def _parse_names(name: str, text: str, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the names of an option, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    unknown = [part for part in parts if part not in names]
    if unknown:
        raise usage_error(name, f"must be among {', '.join(names)}, got {unknown[0]!r}.")
    return tuple(dict.fromkeys(parts))


def _make_grid(
    given: dict[str, str], seeds: tuple[int, ...], everything: bool, schedule: Literal["cosine", "authors"]
) -> "Grid":
    """Return the grid of the options."""
    from ecl2o.paper.sweep_grid import Grid, Network, RhoBar, ScaleName

    names = {"--rho-bar": get_args(RhoBar), "--scale": get_args(ScaleName), "--network": get_args(Network)}
    values: dict[str, Any] = {_AXES[name]: names[name] for name in ("--rho-bar", "--scale") if everything}
    for name, text in given.items():
        kind = int if name == "--period" else float
        named = name in names
        values[_AXES[name]] = (
            _parse_names(name, text, names[name]) if named else options.parse_numbers(text, name, kind)
        )
    try:
        return Grid(seeds=seeds, schedule=schedule, **{axis: tuple(found) for axis, found in values.items()})
    except ValueError as error:  # it starts with the name of an axis
        named = [name for name, axis in _AXES.items() if str(error).startswith(f"{axis} ")]
        raise usage_error("".join(named) or "--seeds", str(error)) from None


ROWS = {
    "r-obd": "R-OBD",
    "pure-ml": "PureML-0",
    "mla-robd": "MLA-ROBD",
    "ec-l2o": "EC-L2O, stated",
    "ec-l2o-tuned": "EC-L2O, chosen",
    "guarded": "guarded",
}


def _print_headline(found: dict[str, Any]) -> None:
    """Print the main comparison: a line for each shortage, network, protocol and row."""
    lines = []
    for group in found["headline"]:
        for name in (name for name in ROWS if name in group["rows"]):
            point, more = group["rows"][name], group["minus_pure_ml"].get(name)
            figures = (
                f"{point[key]:.3f} ± {point[key + '_std']:.3f}"
                for key in ("test_cost", "test_ratio", "test_third_worst")
            )
            paired = (
                ""
                if more is None
                else f"{more['mean']:+.3f} ± {more['standard_error']:.3f}, {more['cheaper']} of {more['seeds']}"
            )
            place = (f"{(group['base_shortage'] or 0) / 1000:g}", group["network"], group["protocol"])
            lines.append((*place, ROWS[name], *figures, paired))
    columns = ("P_s, kW", "network", "protocol", "", "average cost", "worst day", "third-worst", "minus PureML-0")
    notes = [
        "minus PureML-0: mean difference in average cost over seeds ± its standard error, and seeds that were cheaper."
    ]
    tables.print_rows(
        "The paper's main comparison, means over seeds ± deviation", columns, lines, words=columns[1:4], notes=notes
    )


def _print_table(found: dict[str, Any]) -> None:
    _print_headline(found)
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
    title = f"Settings that no other of their family beats, {found['source']['file']}, first shortage and protocol"
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
