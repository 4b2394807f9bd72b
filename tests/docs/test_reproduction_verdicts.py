"""Every verdict of docs/reproduction.md is what the stored figures say, for the code with its network and the text with its own.

Verdicts are sentences, so each stands here a second time as an inequality. Who changes a figure or a verdict so that they part
fails here.
"""

import itertools

import pytest

import ecl2o as ec
from pages import reproduction_tables

tables = reproduction_tables()
_CLOSE = 0.05  # what "approaches" means, as a share of the cost


def mean(run: str, row: str, figure: str = "average_cost") -> float:
    return tables.results(run)["algorithms"][row][figure]["mean"]


def std(run: str, row: str) -> float:
    return tables.results(run)["algorithms"][row]["average_cost"]["std"]


def ratio(run: str, row: str) -> float:
    return mean(run, row, "competitive_ratio")


def tail(run: str, row: str) -> float:
    return tables.results(run)["algorithms"][row]["tail_ratio"]["p99.5"]["mean"]


def points(run: str, family: str) -> dict[str, tuple[float, float]]:
    """(cost, ratio) of the settings of a family."""
    found = tables.results(run)["trade_off"]
    return {p["setting"]: (p["average_cost"], p["competitive_ratio"]) for p in found if p["family"] == family}


def extent(run: str, family: str) -> float:
    """The area that a family's settings cover."""
    costs, ratios = zip(*points(run, family).values(), strict=True)
    return (max(costs) - min(costs)) * (max(ratios) - min(ratios))


def rises(values) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def least_promise(run: str) -> float:
    problem = tables.results(run)["problem"]
    return 1 + float(ec.theory.decay_root(problem["m"], problem["beta"]))


KAPPAS = ("kappa 0", "kappa 0.5", "kappa 1")
# By the beginning of each claim: what its verdict says, of one run.
VERDICTS = {
    "5b: R-OBD's competitive ratio": lambda run: ratio(run, "r-obd") <= least_promise(run) * (1 + 1e-9),
    "5a: R-OBD's average cost": lambda run: mean(run, "r-obd") > 1.25 * mean(run, "pure-ml"),
    "5a, b: PureML cuts": lambda run: (
        mean(run, "pure-ml") < mean(run, "r-obd") and ratio(run, "pure-ml") > 5 * ratio(run, "r-obd")
    ),
    "5b: Switch and MLA-ROBD lower": lambda run: (
        max(ratio(run, "switch"), ratio(run, "mla-robd")) < 0.6 * ratio(run, "pure-ml")
    ),
    "5a: at average costs much worse": lambda run: (
        min(mean(run, "switch"), mean(run, "mla-robd")) > 1.15 * mean(run, "pure-ml")
    ),
    "5a: EC-L2O's average cost": lambda run: (
        mean(run, "ec-l2o-tuned") < mean(run, "pure-ml") < mean(run, "ec-l2o")
        and (run != "authors-code-lstm" or mean(run, "pure-ml") - mean(run, "ec-l2o-tuned") < std(run, "ec-l2o-tuned"))
        and mean("paper-lstm", "ec-l2o-tuned") >= mean("paper-lstm", "pure-ml")
    ),
    "5b: EC-L2O's ratio": lambda run: min(ratio(run, "ec-l2o"), ratio(run, "ec-l2o-tuned")) > 3 * ratio(run, "r-obd"),
    "5c: MLA-ROBD with θ = .2": lambda run: (
        points(run, "mla-robd")["trust 0.2"][0] < points(run, "r-obd")[""][0]
        and points(run, "mla-robd")["trust 0.2"][1] > points(run, "r-obd")[""][1]
    ),
    "5c: MLA-ROBD with θ = 5": lambda run: (
        points(run, "mla-robd")["trust 5"][0] < (1 + _CLOSE) * points(run, "pure-ml")["kappa 0"][0]
    ),
    "5c: κ trades": lambda run: (
        rises(points(run, "pure-ml")[kappa][0] for kappa in KAPPAS)
        and rises(-points(run, "pure-ml")[kappa][1] for kappa in KAPPAS)
    ),
    "5c: EC-L2O has the best": lambda run: (
        min(points(run, "ec-l2o").values()) < min(points(run, "pure-ml").values())
        and int(tables.unbeaten(run).split()[0]) > 0.5 * len(points(run, "mla-robd"))
    ),
    "5c: more trust": lambda run: (
        points(run, "ec-l2o")["trust 0.5, mu 0.3"][0] < points(run, "ec-l2o")["trust 0.3, mu 0.3"][0]
        and not all(
            points(case, "ec-l2o")["trust 0.5, mu 0.3"][1] < points(case, "ec-l2o")["trust 0.3, mu 0.3"][1]
            for case in tables.CASES
        )
    ),
    "5c: EC-L2O's settings lie": lambda run: (
        extent(run, "ec-l2o") > 0.75 * max(extent(run, "mla-robd"), extent(run, "pure-ml"))
    ),
    "6: beyond the 99th percentile": lambda run: tail(run, "ec-l2o") < tail(run, "pure-ml"),
    "6: and comparable": lambda run: 1.1 < tail(run, "ec-l2o") / max(tail(run, "switch"), tail(run, "mla-robd")) < 1.5,
    "6: with μ > 0": lambda run: (
        tail(run, "ec-l2o") < tail(run, "ec-l2o-tuned") and mean(run, "ec-l2o") > mean(run, "ec-l2o-tuned")
    ),
}


def test_every_claim_has_its_inequality():
    beginnings = list(VERDICTS)
    assert len(tables.CLAIMS) == len(beginnings)
    for (claim, _, _), beginning in zip(tables.CLAIMS, beginnings, strict=True):
        assert claim.startswith(beginning)


@pytest.mark.parametrize("run", tables.CASES)
@pytest.mark.parametrize("claim", VERDICTS)
def test_a_verdict_is_what_the_figures_say(claim, run):
    assert VERDICTS[claim](run)
