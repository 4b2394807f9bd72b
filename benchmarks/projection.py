"""Learned policies with a worst-case promise, beside robustness by projection as in RCL and in PALD: cost, worst day, time.

Run `.venv/bin/python benchmarks/projection.py` (five minutes on a busy machine; `--weather FILE` for another year than the
built-in one). The demand-response study of the paper: the first 60 days train, the next 30 select, the rest test, alpha 10, each
day a run that starts from the agent's own last action. Networks are the paper's MLP, with the same steps, batches and seeds in
every row, and the weights of the least cost on the 30 days; "trained through it" means as many steps more through the guard, from
the network trained alone, at a tenth of the rate. Our reading of two papers, without their authors' code
(RCL's constraint from secondary notes, PALD's principle from its abstract):

- *RCL* (Li, Yang, Wierman and Ren, NeurIPS 2023), without delay: the network's action is projected on the actions with
  C_{t-1} + f(x) + c(x, x_{t-1}) + (1 + 1/l0) c(x, x^e_t) <= (1 + l) C^e_t, x^e the action and C^e the cost of R-OBD, and
  l0 = sqrt(1 + l) - 1. Trained before the projection, or through it as the paper does. R-OBD's ratio is 1 + r here, so
  1 + l = promise / (1 + r).
- *PALD* (Lechowicz, Christianson, Hajiesmaili, Wierman and Shenoy, arXiv 2511.18554) learns, end to end, the best algorithm of
  a family under a bound on its worst-case ratio. Its problem is another one, energy that is bought, stored and delivered, and its
  family does not apply here. This is the principle for ours: an affine law of the last five contexts and the previous action with
  weights for every hour, whose exact worst-case ratio, a generalised eigenvalue, is kept below the promise by pulling the weights
  toward R-OBD's after every step.

Times: CPU seconds of training per seed, compilation included; microseconds of one decision in a `Runner`, interleaved in
rounds. Guards of this library renew their promise every day there (`every`); RCL and the law do not.
"""

import argparse
import datetime
import importlib.metadata
import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ecl2o as ec
from ecl2o.agents import Info
from ecl2o.data import weather_contexts
from ecl2o.evaluation.daily import TestDays, score_days, score_runs
from ecl2o.learning import CalibratedLoss, StandaloneLoss, fit_many
from ecl2o.paper.networks import LEARNING_RATES, untrained_key
from ecl2o.running import rollout_batch, stream_days
from ecl2o.theory import exact_robd_ratio, optimal_lambda2

ALPHA, HOURS, LAGS, HISTORY = 10.0, 24, 5, 14 * 24
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))
PULL = float(ALPHA / (1 + ALPHA * (1 + optimal_lambda2(1.0, ALPHA, ALPHA, 0.0))))  # of R-OBD toward its previous action


def step_cost(action, context, previous):
    """1/2 (x - y)^2 and alpha/2 (x - x_prev)^2."""
    return 0.5 * (action - context) ** 2 + 0.5 * ALPHA * (action - previous) ** 2


class Account(NamedTuple):
    """The network's state, R-OBD's action, and both costs so far."""

    inner: Any
    expert: jax.Array
    cost: jax.Array
    expert_cost: jax.Array


class RCL(ec.AbstractAgent):
    """RCL's projection of an agent's action, in one dimension."""

    agent: ec.AbstractAgent
    slack: jax.Array

    def init(self, problem, start):
        """Start both accounts at zero."""
        zero = jnp.zeros_like(start.x0)
        return Account(self.agent.init(problem, start), start.x0, zero, zero)

    def step(self, problem, state, observation):
        """Project on an interval: the constraint is a parabola in x with curvature 2 `half`."""
        y, previous = observation.context, observation.previous_action
        inner, advice, info = self.agent.step(problem, state.inner, observation)
        expert = PULL * state.expert + (1 - PULL) * y
        expert_cost = state.expert_cost + step_cost(expert, y, state.expert)
        reserved = 1 + 1 / (jnp.sqrt(1 + self.slack) - 1)
        half = 0.5 + 0.5 * ALPHA * (1 + reserved)
        centre = (0.5 * y + 0.5 * ALPHA * (previous + reserved * expert)) / half
        least = step_cost(centre, y, previous) + 0.5 * ALPHA * reserved * (centre - expert) ** 2
        room = ((1 + self.slack) * expert_cost - state.cost - least) / half
        radius = jnp.where(room > 0, jnp.sqrt(jnp.where(room > 0, room, 1.0)), 0.0)
        action = jnp.clip(advice, centre - radius, centre + radius)
        cost = state.cost + step_cost(action, y, previous)
        return Account(inner, expert, cost, expert_cost), action, Info(info.converged, advice=advice, inner=info)


class HourlyLaw(ec.AbstractAgent):
    """x_t = x_{t-1} + sum_j w_{t,j} (y_{t-j} - x_{t-1}); contexts before the day count as x_0."""

    weights: jax.Array  # (hours, lags)

    def init(self, problem, start):
        """Fill the memory with x_0."""
        return jnp.broadcast_to(start.x0, (self.weights.shape[1],))

    def step(self, problem, state, observation):
        """Apply the hour's weights."""
        recent = jnp.concatenate([observation.context, state[:-1]])
        previous = observation.previous_action
        action = previous + jnp.dot(self.weights[observation.step % len(self.weights)], recent - previous)[None]
        return recent, action, Info(jnp.ones((), bool))


def worst_ratio(weights):
    """The largest cost / optimum of an `HourlyLaw` over a day: both are quadratic forms of the contexts less x_0."""
    steps = jnp.eye(HOURS) - jnp.eye(HOURS, k=-1)
    response = jax.vmap(lambda contexts: _actions(weights, contexts), out_axes=1)(jnp.eye(HOURS))
    miss, moves = response - jnp.eye(HOURS), steps @ response
    optimum = jnp.eye(HOURS) - jnp.linalg.inv(jnp.eye(HOURS) + ALPHA * steps.T @ steps)
    root = jnp.linalg.cholesky(optimum)
    half = jax.scipy.linalg.solve_triangular(root, miss.T @ miss + ALPHA * moves.T @ moves, lower=True)
    return jnp.linalg.eigvalsh(jax.scipy.linalg.solve_triangular(root, half.T, lower=True))[-1]


def _actions(weights, contexts):
    def step(carry, given):
        previous, memory = carry
        context, hourly = given
        memory = jnp.concatenate([context[None], memory[:-1]])
        action = previous + hourly @ (memory - previous)
        return (action, memory), action

    return jax.lax.scan(step, (jnp.zeros(()), jnp.zeros(LAGS)), (contexts, weights))[1]


def fit_certified_law(promise: float, windows: ec.Instance, steps: int, rate: float = 3e-3) -> HourlyLaw:
    """Descend on the mean cost; after each step pull the weights toward R-OBD's until the certificate is kept."""
    robd = jnp.zeros((HOURS, LAGS)).at[:, 0].set(1 - PULL)
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def loss(weights):
        return rollout_batch(HourlyLaw(weights), PROBLEM, windows).cost.mean()

    def keep(weights):
        def halve(_, ends):
            low, high = ends
            middle = 0.5 * (low + high)
            fits = worst_ratio(robd + middle * (weights - robd)) <= promise
            return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

        share = jax.lax.fori_loop(0, 12, halve, (jnp.zeros(()), jnp.ones(())))[0]
        return jnp.where(worst_ratio(weights) <= promise, weights, robd + share * (weights - robd))

    def descend(_, carry):
        weights, state = carry
        updates, state = optimizer.update(jax.grad(loss)(weights), state)
        return keep(weights + updates), state

    fitted = jax.jit(lambda start: jax.lax.fori_loop(0, steps, descend, start)[0])((robd, optimizer.init(robd)))
    assert float(worst_ratio(fitted)) <= promise * (1 + 1e-9)
    return HourlyLaw(fitted)


class TrainingData(NamedTuple):
    """Windows to train on, days to select weights by, and the number of steps."""

    windows: ec.Instance
    validation: ec.Instance
    steps: int


class Row(NamedTuple):
    """A row of the table: one agent for each seed, the promised ratio, CPU seconds of its training."""

    name: str
    promise: float | None
    agents: list[ec.AbstractAgent]
    seconds: float = 0.0


def main() -> None:
    """Train all rows, score them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weather", help="a weather file instead of the built-in year")
    parser.add_argument("--promises", type=float, nargs="+", default=[2.5, 2.0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    contexts = weather_contexts(given.weather)
    windows, days = contexts.training_windows(), TestDays.of(PROBLEM, *contexts.test_days(HISTORY))
    between = contexts.validation_days(HISTORY)
    validation = ec.Instance(np.concatenate([between.x0[None], between.days[:-1, -1]]), between.days)
    data = TrainingData(windows, validation, given.steps)
    print(
        f"{datetime.date.today()}, jax {importlib.metadata.version('jax')}, load {os.getloadavg()[0]:.1f}; "
        f"{len(windows.x0)} windows, {len(days.days)} test days, {given.steps} steps, {given.seeds} seeds"
    )
    rows = rows_without(data, given.seeds)
    trained = next(row for row in rows if row.name == "network alone")
    for promise in given.promises:
        rows += rows_with(promise, trained, data)
    timings = time_decisions([row.agents[0] for row in rows])
    print(f"\n{'':44s}{'promise':>8s}{'cost':>9s}{'+-':>7s}{'worst day':>11s}{'training, s':>13s}{'decision, us':>14s}")
    for row, microseconds in zip(rows, timings, strict=True):
        scores = [score(agent, days) for agent in row.agents]
        costs, worst = [each.average_cost for each in scores], max(each.competitive_ratio for each in scores)
        promised = "" if row.promise is None else f"{row.promise:g}"
        cells = f"{np.mean(costs):9.4f}{np.std(costs):7.4f}{worst:11.3f}{row.seconds:13.1f}{microseconds:14.1f}"
        print(f"{row.name:44s}{promised:>8s}{cells}", flush=True)
        assert row.promise is None or worst <= row.promise * (1 + 1e-9), row.name


def score(agent: ec.AbstractAgent, days: TestDays):
    """Each day from the agent's own last action; an agent that renews its promise itself runs through all days."""
    if agent.renews_promise:
        return score_runs(*stream_days(agent, days.problem, days.x0, days.days, days.history), days)
    return score_days(agent, days)


def rows_without(data: TrainingData, seeds: int) -> list[Row]:
    """Rows that promise nothing of their own choice."""
    ratio = float(exact_robd_ratio(1.0, ALPHA))
    alone = fit_rows([network(seed) for seed in range(seeds)], StandaloneLoss(), data)
    calibrated = fit_rows([ec.MLAROBD(network(seed), 0.5) for seed in range(seeds)], CalibratedLoss(mu=0.6), data)
    return [
        Row("R-OBD", ratio, [ec.ROBD()]),
        Row("network alone", None, *alone),
        Row("EC-L2O (trust 0.5, mu 0.6)", None, *calibrated),
    ]


def rows_with(promise: float, trained: Row, data: TrainingData) -> list[Row]:
    """Rows that promise this ratio for each day."""
    slack = jnp.asarray(promise / float(exact_robd_ratio(1.0, ALPHA)) - 1)

    def competitive(agent):
        return ec.Competitive(agent, promise, horizon=HOURS)

    def two_rows(name, guard):
        guarded = [guard(agent) for agent in trained.agents]
        agents, seconds = fit_rows(guarded, StandaloneLoss(), data, rate=0.1 * LEARNING_RATES["mlp"])
        yield Row(f"{name}, after training", promise, guarded, trained.seconds)
        yield Row(f"{name}, trained through it", promise, agents, trained.seconds + seconds)

    started = time.process_time()
    law = fit_certified_law(promise, data.windows, data.steps)
    certified = time.process_time() - started
    return [
        *two_rows("RCL", lambda agent: RCL(agent, slack)),
        Row("PALD's principle: a law with a certificate", promise, [law], certified),
        *two_rows("Guarded", lambda agent: ec.Guarded(agent, slack=slack)),
        *two_rows("Competitive", competitive),
        Row("Competitive around OnlineRidge", promise, [competitive(ec.advisors.OnlineRidge(24)).every(24)]),
    ]


def network(seed: int) -> ec.AbstractAgent:
    """The paper's MLP, untrained."""
    return ec.advisors.MLP(1, 1, key=untrained_key(seed))


def fit_rows(agents: list, loss, data: TrainingData, rate: float = LEARNING_RATES["mlp"]) -> tuple[list, float]:
    """Train all seeds in one program; return the agents, and CPU seconds for each seed."""
    started, keys = time.process_time(), [jax.random.key(seed) for seed in range(len(agents))]
    options = {"losses": loss, "keys": keys, "steps": data.steps, "learning_rates": rate, "validation": data.validation}
    fitted = fit_many(agents, PROBLEM, data.windows, **options)
    return [each.agent for each in fitted], (time.process_time() - started) / len(agents)


def time_decisions(agents: list[ec.AbstractAgent], rounds: int = 9, steps: int = 200) -> list[float]:
    """The median over rounds of the median microseconds of a step; the agents take turns."""
    daily = [agent.every(HOURS) if isinstance(agent, ec.Guard) else agent for agent in agents]
    runners = [ec.Runner(ec.Policy(agent, PROBLEM), [0.5]) for agent in daily]
    contexts = np.random.default_rng(0).uniform(0.0, 0.8, size=(steps, 1))
    taken = np.empty((len(runners), rounds, steps))
    for lap in range(rounds):
        for i, runner in enumerate(runners):
            for j, context in enumerate(contexts):
                started = time.perf_counter_ns()
                runner.step(context)
                taken[i, lap, j] = (time.perf_counter_ns() - started) / 1e3
    return np.median(np.median(taken, axis=2), axis=1).tolist()


if __name__ == "__main__":
    main()
