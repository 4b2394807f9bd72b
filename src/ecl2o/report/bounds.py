"""Figure: what the theorems promise, against the error of the advice."""

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from ecl2o import theory
from ecl2o.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, house_style, new_figure
from ecl2o.theory.forms import Form

_POINTS = 241
_TRUST_LINES = (
    (ORANGE, "-", "o"),
    (SKY, (0, (3, 1)), "^"),
    (GREEN, (0, (6, 2, 1, 2)), "D"),
    (PURPLE, (0, (1, 1)), "P"),
)
_FORMS: tuple[tuple[Form, str], ...] = (("tight", "tight form"), ("paper", "as the paper prints it"))


def draw_bounds(m: float, alpha: float, beta: float, trusts: list[float]) -> Figure:
    """Competitive-ratio bounds against rho: pure ML (a lower bound), MLA-ROBD by trust, and R-OBD; both forms."""
    largest = 1.5 * max(float(theory.useful_prediction_error(m, alpha, beta, form)) for form, _ in _FORMS)
    rho = np.linspace(0.0, largest, _POINTS)
    with house_style():
        figure = new_figure(height=3.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (form, title) in zip(panels, _FORMS, strict=True):
            _draw_form(axes, rho, m, alpha, beta, trusts, form)
            axes.set_title(title)
            axes.set_xlabel(r"$\rho$: error of the advice / cost of the optimum")
            axes.set_xlim(0, largest)
        top = max(float(theory.robd_ratio(m, alpha, beta, form)) for form, _ in _FORMS)
        panels[0].set_ylim(1, 1.0 + 1.6 * (top - 1))
        panels[0].set_ylabel("competitive ratio")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _draw_form(axes, rho, m, alpha, beta, trusts, form: Form) -> None:
    errors = jnp.asarray(rho)
    pure = theory.pure_ml_lower_bound(m, alpha, errors, form=form, beta=beta)
    axes.plot(rho, pure, color=VERMILLION, linestyle=(0, (1, 2)), label="pure ML (at least)")
    robd = np.full_like(rho, float(theory.robd_ratio(m, alpha, beta, form)))
    axes.plot(rho, robd, color=BLUE, linestyle=(0, (5, 2)), label="R-OBD (at most)")
    every = _POINTS // 6
    for place, trust in enumerate(trusts):
        color, dash, marker = _TRUST_LINES[place % len(_TRUST_LINES)]
        label = f"MLA-ROBD, trust {trust:g} (at most)"
        bound = theory.mla_robd_bound(m, alpha, beta, trust, errors, form)
        axes.plot(rho, bound, color=color, linestyle=dash, marker=marker, markevery=every, label=label)
    useful = float(theory.useful_prediction_error(m, alpha, beta, form))
    axes.axvline(useful, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), label="advice helps to the left")
