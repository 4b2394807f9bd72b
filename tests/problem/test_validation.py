"""Bad input raises where it enters, with a message that names the field."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec

NAN, INFINITY = float("nan"), float("inf")
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=2))
BOXED = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=2), ec.Box(0.0, 1.0))
GOOD = ec.Instance([0.5, 0.5], np.zeros((3, 2)))
SET = ec.Instance(np.zeros((4, 2)), np.zeros((4, 3, 2)))


def _tracking(x, y):
    return 0.5 * jnp.sum((x - y) ** 2)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("Q must be symmetric", lambda: ec.Mahalanobis([[1.0, 0.5], [0.0, 1.0]])),
        ("Q must be positive definite", lambda: ec.Mahalanobis([[1.0, 2.0], [2.0, 1.0]])),
        ("Q must be positive definite", lambda: ec.Mahalanobis([[1.0, 0.0], [0.0, 0.0]])),
        ("Q must be finite", lambda: ec.Mahalanobis([[NAN]])),
        ("alpha must be positive", lambda: ec.Mahalanobis.isotropic(alpha=0.0, dim=2)),
        ("A must be symmetric", lambda: ec.Quadratic([[1.0, 0.5], [0.0, 1.0]])),
        ("A must be positive definite", lambda: ec.Quadratic([[-1.0]])),
        ("weight must be positive", lambda: ec.SquaredTracking(0.0)),
        ("weight must be finite", lambda: ec.SquaredTracking(INFINITY)),
        ("weight must be one number", lambda: ec.SquaredTracking([1.0, 2.0])),
        ("minimum must be positive", lambda: ec.CurvedTracking(-1.0)),
        ("strong_convexity must be positive", lambda: ec.ConvexCost(_tracking, strong_convexity=0.0)),
        ("strong_convexity must be positive", lambda: ec.ConvexCost(_tracking, strong_convexity=-1.0)),
        ("strong_convexity must be finite", lambda: ec.ConvexCost(_tracking, strong_convexity=NAN)),
        ("lower must not exceed upper", lambda: ec.Box([0.0, 2.0], [1.0, 1.0])),
        ("lower must not exceed upper", lambda: ec.Box(2.0, [1.0, 3.0])),
        ("upper must not be NaN", lambda: ec.Box(0.0, NAN)),
        ("lower and upper must have the same length", lambda: ec.Box([0.0, 0.0], [1.0, 1.0, 1.0])),
        ("lower must be a number or a vector", lambda: ec.Box([[0.0]], 1.0)),
        ("x0 must be finite", lambda: ec.Instance([NAN], [[1.0]])),
        ("x0 must be finite", lambda: ec.Instance([INFINITY], [[1.0]])),
        (r"contexts must be finite, but contexts\[1, 0\] is nan", lambda: ec.Instance([0.0], [[1.0], [NAN]])),
        ("contexts must be finite", lambda: ec.Instance([0.0], [[-INFINITY]])),
        ("history must be finite", lambda: ec.Instance([0.0], [[1.0]], [[NAN]])),
        ("history has contexts of 2 numbers", lambda: ec.Instance([0.0], [[1.0]], [[1.0, 2.0]])),
        (r"contexts\[:, None\]", lambda: ec.Instance([0.0], [1.0, 2.0])),
        ("contexts must have shape", lambda: ec.Instance([[0.0]], np.zeros((2, 3, 1)))),
        ("must not be empty", lambda: ec.Instance([0.0], np.zeros((0, 1)))),
        ("x0 must have shape", lambda: ec.Instance(0.0, [[1.0]])),
        ("lambda1 must lie in", lambda: ec.ROBD(lambda1=1.5)),
        ("lambda1 must lie in", lambda: ec.MLAROBD(ec.Greedy(), lambda1=0.0)),
        ("trust must not be negative", lambda: ec.MLAROBD(ec.Greedy(), trust=-0.1)),
        ("lambda2 must not be negative", lambda: ec.MLAROBD(ec.Greedy(), lambda2=-0.1)),
        ("actions must have shape", lambda: ec.advisors.Fixed([1.0, 2.0])),
        ("horizon must be at least 1", lambda: ec.certify(ec.Greedy(), PROBLEM, 0)),
        ("budget must not be negative", lambda: ec.constrained_oracle(PROBLEM, GOOD, -1.0)),
        ("budget must not be negative", lambda: ec.constrained_oracle(PROBLEM, GOOD, NAN)),
    ],
)
def test_wrong_arguments_raise(field, make):
    with pytest.raises(ValueError, match=field):
        make()


_WITHOUT_RUN_TIME_TYPES = """
import ecl2o as ec
problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
for make in (
    lambda: ec.Mahalanobis([[1.0, 0.0]]),
    lambda: ec.Quadratic([1.0, 0.0]),
    lambda: ec.ROBD(form="loose"),
    lambda: ec.FollowPrediction(ec.Greedy(), form="tight"),
    lambda: ec.theory.robd_ratio(1.0, 1.0, 1.0, form="loose"),
    lambda: ec.constrained_oracle(problem, ec.Instance([0.0], [[1.0]]), [1.0, 2.0]),
):
    try:
        make()
        print("accepted")
    except ValueError as refusal:
        print(refusal)
"""


def test_wrong_arguments_raise_without_run_time_types():
    """The library itself rejects what the shape checks of the tests would catch first."""
    run = subprocess.run([sys.executable, "-c", _WITHOUT_RUN_TIME_TYPES], capture_output=True, text=True, check=True)
    expected = ["Q must be a square", "A must be a square", *["form must be"] * 3, "budget must be one number"]
    for line, start in zip(run.stdout.splitlines(), expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize("entry", [lambda p, s: ec.rollout(ec.Greedy(), p, s), ec.oracle])
@pytest.mark.parametrize(
    ("field", "problem", "instance"),
    [
        ("jax.vmap", PROBLEM, SET),
        (r"Q must have shape \(3, 3\)", PROBLEM, ec.Instance(np.zeros(3), np.zeros((2, 3)))),
        ("contexts have 3, x0 has 2", PROBLEM, ec.Instance(np.zeros(2), np.zeros((2, 3)))),
        ("x0 = .* lies outside the box", BOXED, ec.Instance([0.5, 1.5], np.zeros((2, 2)))),
        (
            "A must have shape",
            ec.Problem(ec.Quadratic(np.eye(3)), ec.Mahalanobis.isotropic(alpha=1.0, dim=2)),
            GOOD,
        ),
        (
            "lower must have 2 entries",
            ec.Problem(ec.SquaredTracking(), PROBLEM.switching, ec.Box(np.zeros(3), np.ones(3))),
            GOOD,
        ),
        (r"contexts \(centre, curvature\) of dimension 3", ec.Problem(ec.CurvedTracking(), PROBLEM.switching), GOOD),
        (
            "fn must return one number",
            ec.Problem(ec.ConvexCost(lambda x, y: (x - y) ** 2, strong_convexity=1.0), PROBLEM.switching),
            GOOD,
        ),
        (
            r"fn reads past the end .*\(contexts of 2 numbers\)",
            ec.Problem(ec.ConvexCost(lambda x, y: y[2] * jnp.sum((x - y[:2]) ** 2), 1.0), PROBLEM.switching),
            GOOD,
        ),
        (
            "minimizer must return an action",
            ec.Problem(ec.ConvexCost(_tracking, 1.0, minimizer=lambda y: y[:1]), PROBLEM.switching),
            GOOD,
        ),
    ],
)
def test_instances_that_do_not_fit_raise(entry, field, problem, instance):
    with pytest.raises(ValueError, match=field):
        entry(problem, instance)


def test_fixed_advice_that_does_not_fit_raises():
    with pytest.raises(ValueError, match="dimension 1, but the problem's 2"):
        ec.rollout(ec.advisors.Fixed(np.zeros((3, 1))), PROBLEM, GOOD)
    with pytest.raises(ValueError, match="2 actions for 3 steps"):
        ec.rollout(ec.advisors.Fixed(np.zeros((2, 2))), PROBLEM, GOOD)


def test_values_are_not_checked_while_tracing():
    """A traced box cannot be checked; it must not fail either."""
    x = jax.jit(lambda upper: ec.Box(0.0, upper).project(jnp.array([3.0])))(jnp.array(1.0))
    assert float(x[0]) == 1.0


def test_integers_become_floats():
    instance = ec.Instance([0, 1], [[1, 2]])
    assert instance.x0.dtype == instance.contexts.dtype == jnp.float64
    assert ec.SquaredTracking(2).weight.dtype == jnp.float64
    assert ec.Instance(np.zeros(1, np.float32), [[1.0]]).contexts.dtype == jnp.float32


def test_importing_the_package_does_not_import_jax():
    code = "import sys, ecl2o; dir(ecl2o); print('jax' in sys.modules, 'ROBD' in dir(ecl2o))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False True\n"
    )


def test_every_public_name_exists():
    for name in ec.__all__:
        assert getattr(ec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        ec.Nonsense
