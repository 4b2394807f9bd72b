"""The theorems as pure functions of (m, alpha, beta, trust, rho, ...).

`form="tight"` (the default) is the corrected or sharper form of docs/errata.md; `form="paper"` is what the paper prints.
All functions take numbers or arrays, broadcast, and can be differentiated.
"""

from ecl2o.theory.control import competitive_control_ratio, smallest_control_ratio
from ecl2o.theory.experts import (
    decay_root,
    exact_robd_ratio,
    greedy_ratio,
    hitting_minimizer_ratio,
    robd_ratio,
    switch_bound,
)
from ecl2o.theory.generalization import (
    average_cost_bound,
    mixing_norm,
    shift_effect,
    tail_prediction_error,
    tail_ratio_bound,
)
from ecl2o.theory.mla_robd import (
    mla_robd_bound,
    mla_robd_bound_at,
    optimal_lambda2,
    optimal_trust,
    path_strong_convexity,
    pure_ml_lower_bound,
    regret_bound,
    smallest_lambda1,
    sublinear_regret_bound,
    sublinear_weights,
    useful_prediction_error,
)
from ecl2o.theory.promises import (
    clipped_prediction_error,
    future_stiffness,
    guarded_ratio,
    joint_share,
    largest_share,
    limit_stiffness,
    past_stiffness,
    promise_value,
    recurring_stiffness,
    smallest_feasible_ratio,
    smallest_joint_ratio,
    training_reservation,
    worst_future,
)

__all__ = [
    "average_cost_bound",
    "clipped_prediction_error",
    "competitive_control_ratio",
    "decay_root",
    "exact_robd_ratio",
    "future_stiffness",
    "greedy_ratio",
    "guarded_ratio",
    "hitting_minimizer_ratio",
    "joint_share",
    "largest_share",
    "limit_stiffness",
    "mla_robd_bound",
    "mixing_norm",
    "mla_robd_bound_at",
    "optimal_lambda2",
    "optimal_trust",
    "past_stiffness",
    "path_strong_convexity",
    "promise_value",
    "pure_ml_lower_bound",
    "recurring_stiffness",
    "regret_bound",
    "robd_ratio",
    "shift_effect",
    "smallest_control_ratio",
    "smallest_feasible_ratio",
    "smallest_joint_ratio",
    "smallest_lambda1",
    "sublinear_regret_bound",
    "sublinear_weights",
    "switch_bound",
    "tail_prediction_error",
    "tail_ratio_bound",
    "training_reservation",
    "useful_prediction_error",
    "worst_future",
]
