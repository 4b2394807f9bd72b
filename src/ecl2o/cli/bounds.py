"""`ecl2o bounds`: the theorems for given constants, as a table or a figure."""

from pathlib import Path
from typing import Any

from ecl2o.cli import options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import check_positive, option


def bounds(
    m: float = option("Strong convexity of the hitting cost.", default=1.0, callback=check_positive),
    alpha: float = option(
        "Strong convexity of the switching cost: 2 lambda_min(Q).", default=10.0, callback=check_positive
    ),
    beta: float | None = option(
        "Smoothness of the switching cost: 2 lambda_max(Q). (default: alpha)", callback=check_positive
    ),
    trust: list[float] | None = option("Trust in the advice; repeat for several. (default: 0.3)"),
    rho: float = option("Error of the advice: squared distance from the optimum over its cost.", default=0.5),
    figure: Path | None = option("Draw the bounds against rho into this file (.png, .svg or .pdf)."),
    json: output.Json = False,
) -> None:
    """Show what the theorems promise: competitive ratios, in the paper's form and in the tight one (docs/errata.md)."""
    beta = alpha if beta is None else beta
    trusts = trust or [0.3]
    if beta < alpha:
        raise options.usage_error("--beta", f"must be at least alpha, {alpha:g}, got {beta:g}.")
    for name, value in [("--rho", rho), *(("--trust", value) for value in trusts)]:
        if not 0 <= value < float("inf"):
            raise options.usage_error(name, f"must be finite and not negative, got {value:g}.")
    use_cached_programs()
    rows = _rows(m, alpha, beta, trusts, rho)
    found = {"m": m, "alpha": alpha, "beta": beta, "trust": trusts, "rho": rho, "bounds": rows}
    if figure is not None:
        from ecl2o.paper.figures import draw_bounds
        from ecl2o.plots.style import save_figure

        save_figure(draw_bounds(m, alpha, beta, trusts), figure)
        found["figure"] = str(figure)
    if json:
        output.print_json(found)
        return
    title = f"Competitive ratios for m = {m:g}, alpha = {alpha:g}, beta = {beta:g}"
    columns = ("", "tight", "paper", "what it is")
    cells = [(row["name"], _text(row["tight"]), _text(row["paper"]), row["what"]) for row in rows]
    tables.print_rows(title, columns, cells, words=("", "what it is"))
    if figure is not None:
        tables.print_message(f"figure: {figure}")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


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
