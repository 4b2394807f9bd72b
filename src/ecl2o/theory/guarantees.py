"""Promises that hold whatever the advice: the numbers behind the guards. Proofs are in docs/guarantees.md.

One coordinate of a problem with constant curvature: f = 1/2 (x - y)^2 and c = a/2 (x - z)^2, where a is beta/m, or one of the
eigenvalues that diagonalise a general pair of matrices. The *work function*, the least cost of a prefix that ends in z, is
p_t/2 (z - m_t)^2 + r_t with r_t the optimum of the prefix. The game against all future contexts has the value
v_t/2 (x_t - m_t)^2. Both sequences are rational recursions in one number.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.theory.experts import robd_ratio
from ecl2o.theory.forms import Form, Result, Scalar

_HALVINGS = 60


def next_stiffness(stiffness, a):
    """k_t = a (1 + k_{t-1}) / (a + 1 + k_{t-1}): how firmly the past holds the next action; k_0 = a."""
    return a * (1 + stiffness) / (a + 1 + stiffness)


def limit_stiffness(a: Scalar) -> Result:
    """The limit of k_t, (sqrt(1 + 4a) - 1) / 2.

    >>> float(limit_stiffness(2.0))
    1.0
    """
    a = jnp.asarray(a)
    return 2 * a / (jnp.sqrt(1 + 4 * a) + 1)


def _room(value, stiffness, a, ratio):
    """-A_t R_yy of the game's step: positive where the adversary's best context is finite."""
    g = 1 / (1 + stiffness)
    s = stiffness * g
    return (1 + a) * ratio * s - a + (s * (ratio - s) - a * g * g) * value


def previous_value(value, stiffness, a, ratio):
    """v_{t-1} from v_t and k_{t-1}: a s (L + (L - s) v) / ((1 + a) L s - a + (s (L - s) - a g^2) v), L the ratio,
    g = 1/(1 + k), s = k/(1 + k).

    >>> round(previous_value(0.0, 2.0, 2.0, 3.0), 6)
    1.0
    """
    s = stiffness / (1 + stiffness)
    return a * s * (ratio + (ratio - s) * value) / _room(value, stiffness, a, ratio)


def worst_context_gain(value, stiffness, a, ratio):
    """The adversary's best context: y_t - m_{t-1} = gain * (x_{t-1} - m_{t-1}), on the other side of m; from v_t and k_{t-1}.

    >>> round(worst_context_gain(0.0, 2.0, 2.0, 3.0), 6)
    -0.5
    """
    return -a * (1 + value / (1 + stiffness)) / _room(value, stiffness, a, ratio)


def stiffness_table(a: Float[Array, "*n"], horizon: int) -> Float[Array, " rows *n"]:
    """k_0 .. k_{T-1}."""

    def advance(k, _):
        return next_stiffness(k, a), k

    return jax.lax.scan(advance, jnp.asarray(a), None, length=horizon)[1]


def limit_value(a: Scalar, ratio: Scalar) -> Result:
    """The value of the game without an end, once the past has settled: the fixed point of `previous_value` at the limit
    of k. It is the positive root of e v^2 - b v - a L = 0, e = L - 1 - r, b = 1 + 2k - L; infinite as L falls to 1 + r.

    >>> v = limit_value(10.0, 2.5)
    >>> round(float(v), 6) == round(float(previous_value(v, limit_stiffness(10.0), 10.0, 2.5)), 6)
    True
    """
    a, ratio = jnp.asarray(a), jnp.asarray(ratio)
    k = limit_stiffness(a)
    excess, b = ratio - 1 - k / (1 + k), 1 + 2 * k - ratio
    root = jnp.sqrt(b * b + 4 * excess * a * ratio)
    rising = b > 0
    return jnp.where(rising, (b + root) / (2 * excess), 2 * a * ratio / jnp.where(rising, 1.0, root - b))


def value_table(
    a: Float[Array, "*n"], ratio: Float[Array, ""], horizon: int, terminal: Float[Array, "*n"] | None = None
) -> Float[Array, " rows *n"]:
    """v_0 .. v_T of the game over T steps, backwards from `terminal` (zero: nothing follows).

    Meaningless where the ratio is below `smallest_feasible_ratio`.

    >>> import jax.numpy as jnp
    >>> [round(float(value_table(jnp.array(10.0), jnp.array(L), 24)[0]), 3) for L in (1.8, 2.0, 2.5, 4.0)]
    [6.079, 5.403, 4.503, 3.602]
    """
    a = jnp.asarray(a)
    last = jnp.zeros_like(a) if terminal is None else terminal

    def retreat(value, stiffness):
        value = previous_value(value, stiffness, a, ratio)
        return value, value

    _, values = jax.lax.scan(retreat, last, stiffness_table(a, horizon), reverse=True)
    return jnp.concatenate([values, last[None]])


def is_feasible_ratio(a: float | np.ndarray, ratio: float | np.ndarray, horizon: int | None = None) -> np.ndarray:
    """Whether cost <= ratio * optimum can be promised over `horizon` steps; None: however long. In double precision.

    >>> bool(is_feasible_ratio(10.0, 1.73)), bool(is_feasible_ratio(10.0, 1.729))
    (True, False)
    """
    a, ratio = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(ratio, np.float64))
    if horizon is None:
        return np.asarray(ratio > 1 + _double_decay_root(a))
    stiffness = [a]
    for _ in range(horizon - 1):
        stiffness.append(next_stiffness(stiffness[-1], a))
    value, feasible = np.zeros_like(a), ratio >= 1
    for k in reversed(stiffness[1:]):  # at the first step the past is a point, and a ratio of 1 suffices
        feasible = feasible & (_room(value, k, a, ratio) > 0)
        value = np.where(feasible, previous_value(value, k, a, np.where(feasible, ratio, 4.0)), 0.0)
    return np.asarray(feasible)


def smallest_feasible_ratio(a: float | np.ndarray, horizon: int | None = None) -> np.ndarray:
    """The minimax competitive ratio for a = beta/m (or one per coordinate): no online algorithm promises less.

    Over T steps by bisection to the last digit; `horizon=None` is the limit 1 + r, R-OBD's own exact ratio, which only
    larger ratios keep for ever.

    >>> round(float(smallest_feasible_ratio(10.0, horizon=24)), 6)
    1.728527
    >>> round(float(smallest_feasible_ratio(10.0)), 6)
    1.729844
    """
    a = np.asarray(a, np.float64)
    if not (a > 0).all():
        raise ValueError(f"a must be positive, got {a}.")
    if horizon is None:
        return np.asarray(1 + _double_decay_root(a))
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    low, high = np.ones_like(a), np.full_like(a, 2.0)
    high = np.where(is_feasible_ratio(a, low, horizon), low, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        feasible = is_feasible_ratio(a, middle, horizon)
        low, high = np.where(feasible, low, middle), np.where(feasible, middle, high)
    return high


def _double_decay_root(a: np.ndarray) -> np.ndarray:
    """`theory.decay_root(1, a)` in double precision whatever JAX is set to."""
    return np.asarray(1 - 2 / (1 + np.sqrt(1 + 4 * a)))


def training_reservation(slack: Scalar) -> Result:
    """sqrt(1 + slack) - 1, the reservation of `Guarded` with which there is always some room: for training.

    The least conservative valid one, for use, is the slack itself.

    >>> float(training_reservation(3.0))
    1.0
    """
    slack = jnp.asarray(slack)
    return slack / (jnp.sqrt(1 + slack) + 1)


def guarded_ratio(m: Scalar, alpha: Scalar, beta: Scalar, slack: Scalar, form: Form = "tight") -> Result:
    """The competitive ratio of any agent inside `Guarded` around R-OBD: (1 + slack) times R-OBD's.

    >>> round(float(guarded_ratio(1.0, 10.0, 10.0, slack=1.0)), 5)
    7.40312
    """
    return (1 + jnp.asarray(slack)) * robd_ratio(m, alpha, beta, form)


def clipped_prediction_error(m: Scalar, alpha: Scalar, beta: Scalar, delta: Scalar, form: Form = "tight") -> Result:
    """The largest prediction error rho of any advice behind `ClippedAdvice` around R-OBD: (4/m)((1 + delta) CR0 + 1).

    With it Theorem 4.1 (`mla_robd_bound`) bounds MLA-ROBD whatever the advisor.

    >>> round(float(clipped_prediction_error(1.0, 10.0, 10.0, delta=0.0)), 5)
    18.80625
    """
    return 4 / jnp.asarray(m) * (guarded_ratio(m, alpha, beta, delta, form) + 1)
