"""`ecl2o bounds`: the theorems for given constants, as a table or a figure."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ecl2o.cli import output, tables


def bounds(
    m: Annotated[float, typer.Option(help="Strong convexity of the hitting cost.")] = 1.0,
    alpha: Annotated[float, typer.Option(help="Strong convexity of the switching cost, 2 lambda_min(Q).")] = 10.0,
    beta: Annotated[
        float | None, typer.Option(help="Smoothness of the switching cost, 2 lambda_max(Q); alpha unless given.")
    ] = None,
    trust: Annotated[list[float] | None, typer.Option(help="Trust in the advice; may be given several times.")] = None,
    rho: Annotated[
        float, typer.Option(help="Error of the advice: squared distance from the optimum over its cost.")
    ] = 0.5,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the bounds against rho into this file (.png, .svg or .pdf).")
    ] = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    """Show what the theorems promise: competitive ratios, in the paper's form and in the tight one (docs/errata.md)."""
    beta = alpha if beta is None else beta
    trusts = trust or [0.3]
    _refuse_bad_constants(m, alpha, beta, trusts, rho)
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    found = {
        "m": m,
        "alpha": alpha,
        "beta": beta,
        "trust": trusts,
        "rho": rho,
        "bounds": _rows(m, alpha, beta, trusts, rho),
    }
    if figure is not None:
        from ecl2o.paper.figures import draw_bounds
        from ecl2o.plots.style import save_figure

        save_figure(draw_bounds(m, alpha, beta, trusts), figure)
        found["figure"] = str(figure)
    if json:
        output.print_json(found)
        return
    _print_table(found)
    if figure is not None:
        output.messages().print(f"figure: {figure}", soft_wrap=True)


def _refuse_bad_constants(m: float, alpha: float, beta: float, trusts: list[float], rho: float) -> None:
    for name, value in (("m", m), ("alpha", alpha), ("beta", beta)):
        if not 0 < value < float("inf"):
            raise typer.BadParameter(f"must be positive and finite, got {value:g}.", param_hint=f"--{name}")
    if beta < alpha:
        raise typer.BadParameter(f"must be at least alpha, {alpha:g}, got {beta:g}.", param_hint="--beta")
    for value in trusts:
        if not 0 <= value < float("inf"):
            raise typer.BadParameter(f"must be finite and not negative, got {value:g}.", param_hint="--trust")
    if not 0 <= rho < float("inf"):
        raise typer.BadParameter(f"must be finite and not negative, got {rho:g}.", param_hint="--rho")


def _rows(m: float, alpha: float, beta: float, trusts: list[float], rho: float) -> list[dict[str, Any]]:
    from ecl2o import theory

    def row(name: str, what: str, tight: Any, paper: Any = None) -> dict[str, Any]:
        return {"name": name, "what": what, "tight": float(tight), "paper": None if paper is None else float(paper)}

    def forms(function: Any, *values: float, **named: float) -> tuple[Any, Any]:
        return function(*values, form="tight", **named), function(*values, form="paper", **named)

    rows = [
        row("R-OBD", "upper bound, least if curvature varies", *forms(theory.robd_ratio, m, alpha, beta)),
        row("Greedy", "upper bound", theory.greedy_ratio(m, beta)),
        row("HittingMinimizer", "upper bound", theory.hitting_minimizer_ratio(m, beta)),
        row(f"PureML at rho {rho:g}", "lower bound", *forms(theory.pure_ml_lower_bound, m, alpha, rho, beta=beta)),
    ]
    if alpha == beta:
        exact = theory.exact_robd_ratio(m, beta)
        rows.insert(1, row("R-OBD, constant curvature", "exact where curvature is m, as in fit", exact))
    for trust in trusts:
        bound = forms(theory.mla_robd_bound, m, alpha, beta, trust, rho)
        rows.append(row(f"MLA-ROBD, trust {trust:g}, at rho {rho:g}", "upper bound", *bound))
        weight = forms(theory.optimal_lambda2, m, alpha, beta, trust)
        rows.append(row(f"lambda2 for trust {trust:g}", "has the least bound, with lambda1 = 1", *weight))
    tight, paper = forms(theory.optimal_trust, m, alpha, beta, rho)
    rows.append(row(f"best trust at rho {rho:g}", "has the least bound", tight, paper))
    if rho > 0:  # perfect advice deserves infinite trust
        at_best = (theory.mla_robd_bound(m, alpha, beta, tight, rho, "tight"),)
        at_best += (theory.mla_robd_bound(m, alpha, beta, paper, rho, "paper"),)
        rows.append(row(f"MLA-ROBD, best trust, at rho {rho:g}", "upper bound", *at_best))
    useful = forms(theory.useful_prediction_error, m, alpha, beta)
    rows.append(row("largest useful rho", "beyond it any trust raises the bound", *useful))
    return rows


def _print_table(found: dict[str, Any]) -> None:
    from rich.table import Table

    title = f"Competitive ratios for m = {found['m']:g}, alpha = {found['alpha']:g}, beta = {found['beta']:g}"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("tight", justify="right")
    table.add_column("paper", justify="right")
    table.add_column("what it is")
    for row in found["bounds"]:
        paper = "" if row["paper"] is None else f"{row['paper']:.5g}"
        table.add_row(row["name"], f"{row['tight']:.5g}", paper, row["what"])
    tables.print_table(table)
