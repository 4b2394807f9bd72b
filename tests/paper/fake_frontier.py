"""A frontier made up in a moment; its figures are near those of Riverside."""

import math

from ecl2o.paper.frontier import Frontier, FrontierPoint, FrontierSettings

GUARDED = ((1.8, 1.29), (2.0, 1.19), (2.2, 1.15), (2.5, 1.10), (3.0, 1.075), (4.0, 1.05))


def fake_frontier(worst: float = 19.2, settings: FrontierSettings = FrontierSettings()) -> Frontier:
    points = [FrontierPoint("r-obd", "R-OBD", 1.729844, 1.699, 1.7298, 1.72, {})]
    points += [
        FrontierPoint(
            "guarded",
            f"{ratio:g} per {per}",
            ratio,
            1 + (cost - 1) * share,
            min(ratio, 3.6) + 1 - share,
            ratio - 0.1,
            {"ratio": ratio},
            per,
            bounded,
        )
        for per, share, bounded in (("day", 1.0, False), ("day", 0.8, True), ("week", 0.3, False), ("run", 0.1, False))
        for ratio, cost in GUARDED
    ]
    points += [
        FrontierPoint("ridge", "OnlineRidge", None, 1.023, 5.0, 2.9, {}),
        FrontierPoint("rhc", "RHC", None, 1.0975, 7.47, 3.0, {"window": 23}),
        FrontierPoint("pure-ml", "PureML-0", None, 1.176, worst, 6.0, {"advisor": "LSTM"}),
        FrontierPoint("mla-robd", "MLA-ROBD", None, 1.493, 3.99, 2.2, {"advisor": "LSTM"}),
        FrontierPoint("ec-l2o", "EC-L2O", None, 1.365, 9.1, 4.0, {"advisor": "LSTM"}),
        FrontierPoint("ec-l2o-tuned", "EC-L2O, tuned", None, 1.127, worst if math.isfinite(worst) else 30.0, 5.0, {}),
    ]
    source = {"file": "site.csv", "sha256": "0" * 64, "preset": "authors-code", "steps_per_day": 24}
    return Frontier(points, 1.728527, 3.701562, [], 275, 0.5, settings, source, 1.0)
