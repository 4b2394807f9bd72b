"""Small programs as one kernel: every operation that is let in compiles and computes the same, and nothing else is let in."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap

import ecl2o as ec
from ecl2o.solvers import single_kernel_jit
from ecl2o.solvers.single_kernel_jit import fits_single_kernel, jit_single_kernel


@jax.custom_jvp
def _doubled(x):
    return 2 * x


@jax.custom_vjp
def _tripled(x):
    return 3 * x


_doubled.defjvp(lambda primals, tangents: (_doubled(*primals), 2 * tangents[0]))
_tripled.defvjp(lambda x: (3 * x, None), lambda _, g: (3 * g,))
_halved = custom_vmap(lambda x: x / 2)
_halved.def_vmap(lambda size, batched, x: (x / 2, True))


def _everything(x, n):
    """Each operation once, at least."""
    arithmetic = [
        *(f(x) for f in (jnp.abs, jnp.ceil, jnp.cos, lax.erf, jnp.exp, jnp.expm1, jnp.floor, jnp.log, jnp.log1p, lax.logistic)),
        *(f(x) for f in (jnp.negative, jnp.round, lax.rsqrt, jnp.sign, jnp.sin, jnp.sqrt, lax.square, jnp.tanh)),
        *(f(x, x[0]) for f in (jnp.add, jnp.divide, jnp.maximum, jnp.minimum, jnp.multiply, jnp.subtract)),
        lax.pow(x, 0.3 + x),
        lax.rem(x, 0.1 + x[::-1]),
        x**3,
        lax.clamp(0.2, x, 0.8),
        lax.clamp(jnp.array(0.2), x, jnp.array(0.8)),
    ]  # fmt: skip
    comparisons = [f(x, 0.5) for f in (lax.eq, lax.ge, lax.gt, lax.le, lax.lt, lax.ne)] + [jnp.isfinite(x)]
    logic = jnp.stack(comparisons)
    logic = logic.at[0].get() & ~logic[1] | (logic[2] ^ logic[3])
    arrangement = [
        lax.dynamic_slice(x, (n,), (3,)),
        lax.dynamic_update_slice(x, x[:2], (n,)),
        x[jnp.array([0, 3, 1]) + n],
        lax.pad(x, 0.0, [(1, 2, 0)]),
        lax.rev(x, (0,)),
        *jnp.split(x, 2),
        jnp.concatenate([x, lax.stop_gradient(x)]),
        jnp.outer(x, x).T.reshape(-1),
        n + jnp.arange(6.0),
        jax.device_put(0.5) * x,
    ]
    reductions = [jnp.argmax(x), jnp.argmin(x), lax.cummax(x), lax.cummin(x), jnp.cumsum(x), jnp.outer(x, x) @ x]
    reductions += [logic.all(), logic.any(), x.max(), x.min(), x.prod(), x.sum()]
    control = [
        lax.cond(n > 0, lambda: x, lambda: -x),
        lax.scan(lambda s, y: (s + y, s * y), x[0], x)[1],
        lax.while_loop(lambda s: s.sum() < 10.0, lambda s: 2 * s, x),
        _doubled(x),
        _tripled(x),
        _halved(x),
        jax.jit(lambda y: y + 1)(x),
    ]
    return [arithmetic, comparisons, arrangement, reductions, control, jnp.where(logic, x, 0.0)]


def _names(program) -> set[str]:
    """The operations of a traced program."""
    inner = [single_kernel_jit.inner_jaxprs(equation.params) for equation in program.eqns]
    return {equation.primitive.name for equation in program.eqns}.union(*(_names(p) for ps in inner for p in ps))


def _entry(compiled) -> str:
    return re.search(r"^ENTRY.*?^}", compiled.as_text(), re.S | re.M)[0]


def test_every_operation_that_is_let_in_compiles_to_one_kernel_and_computes_the_same():
    x, n = jnp.linspace(0.1, 0.9, 6), jnp.asarray(1)
    program = jax.make_jaxpr(_everything)(x, n).jaxpr
    other_names = {"closed_call", "pjit"}  # of functions, in other versions of JAX
    assert single_kernel_jit._POSSIBLE - _names(program) <= other_names
    assert fits_single_kernel(program)
    one = jit_single_kernel(_everything)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), one(x, n), jax.jit(_everything)(x, n))
    entry = _entry(one.lower(x, n).compile())
    assert entry.count(" call(") == 1
    assert " fusion(" not in entry


@pytest.mark.parametrize(
    "function",
    [jnp.sort, lambda x: x.at[jnp.argsort(x)[0]].add(1.0), lambda x: jnp.linalg.cholesky(jnp.diag(x)), jnp.fft.fft],
)
def test_what_needs_the_runtime_is_not_let_in_not_even_in_a_branch(function):
    x = jnp.ones(3)
    assert not fits_single_kernel(jax.make_jaxpr(function)(x).jaxpr)
    hidden = jax.make_jaxpr(lambda x: lax.cond(x.sum() > 0, lambda: function(x).real, lambda: function(2 * x).real))(x)
    assert not fits_single_kernel(hidden.jaxpr)


@pytest.fixture
def nothing_kept():
    """Programs are compiled here, not read from where runners keep them."""
    folder = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", folder)


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize(
    "guard",
    [
        lambda advisor: ec.Competitive(advisor, 2.5, period=6),
        lambda advisor: ec.Promises(advisor, [ec.Promise(1.75), ec.Promise(2.5, period=6)]),
    ],
    ids=["one promise", "two promises"],
)
def test_the_step_that_fit_chooses_is_one_kernel(guard):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    runner = ec.Runner(ec.Policy(guard(ec.advisors.OnlineRidge(6, lags=4, harmonics=1)), problem), [0.5])
    entry = _entry(runner._compiled.advance.lower(runner._shared, runner._carried, np.zeros(1)).compile())
    assert entry.count(" call(") == 1
    assert " fusion(" not in entry


@pytest.mark.parametrize("size", [4095, 4096, 20_000, 200_000])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.sum(jnp.exp(x)),
        lambda x: x @ x,
        lambda x: jnp.sum(x.reshape(-1, 5), axis=0) if x.size % 5 == 0 else jnp.max(x),
        lambda x: jnp.concatenate([x[1:], x[:1]]),
        lambda x: jnp.broadcast_to(x, (3, x.size)) @ x,
    ],
)
def test_what_is_let_in_compiles_whatever_its_size(size, function):
    x = jax.ShapeDtypeStruct((size,), float)
    fits = fits_single_kernel(jax.make_jaxpr(function)(x).jaxpr)
    assert fits or size > 4095
    if fits:
        jit_single_kernel(function).lower(x).compile()


def test_a_regression_of_long_days_runs():
    """8640 steps: ten seconds each. Its sums are longer than what one kernel can reduce."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    runner = ec.Runner(ec.Policy(ec.advisors.OnlineRidge(period=8640), problem), [3.0])
    assert runner.step([3.0]).tolist() == [3.0]
