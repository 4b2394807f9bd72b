"""One training step of EC-L2O on the right-sizing study, beside the same step with a cvxpylayers calibration layer in PyTorch.

Three kinds of racks, a batch of 50 days of 24 hours, the paper's network (3 ReLU layers of 10), the same weights: forward through
24 calibrations, the loss mu rho + (1 - mu) cost, and backward to the weights. Here every calibration is a bounded Newton solve
with an implicit derivative; there it is a cone program (second-order, exponential) that diffcp solves and differentiates.

The layer is helped where possible: the hour's minimiser v_t, which needs a solve of its own, is given to it, and the three
pulls of the calibrator are one squared distance to their mean, which has the same minimiser. Ours finds v_t itself. One process
on one core, CPU seconds: the median of `--repeats` runs of ours, one run of theirs after a warm-up.
Needs the extra `bench`: `make bench-install`.

    .venv/bin/python benchmarks/right_sizing.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
import time

import cvxpy as cp
import equinox as eqx
import jax
import numpy as np
import torch
from cvxpylayers.torch import CvxpyLayer
from timing import pin_to_one_core

import ecl2o as ec
from ecl2o.agents.advisors import Scaling
from ecl2o.paper.right_sizing import Cluster, cheapest_actions, make_synthetic_workload

BATCH, TRUST, MU = 50, 0.5, 0.6
CLUSTER = Cluster()


def setting(seed: int = 0):
    """Problem, agent, a batch of days and their oracles, in double precision."""
    problem = CLUSTER.problem()
    windows = make_synthetic_workload(seed).training_windows()
    chosen = np.random.default_rng(seed).choice(windows.x0.shape[0], BATCH, replace=False)
    batch = ec.Instance(cheapest_actions(problem, windows.x0[chosen]), windows.contexts[chosen])
    best = jax.jit(jax.vmap(lambda day: ec.oracle(problem, day)))(batch)
    scalings = {"contexts": Scaling(10.0, 5.0), "actions": Scaling.of(best.actions.reshape(-1, 3))}
    return problem, ec.MLAROBD(ec.advisors.MLP(3, 1, key=jax.random.key(seed), **scalings), TRUST), batch, best


def our_step(problem, agent, batch, best):
    """A compiled function of the network's layers: loss and gradient."""
    loss = ec.CalibratedLoss(mu=MU)

    @jax.jit
    def step(layers, batch, best):
        def value(layers):
            return loss(eqx.tree_at(lambda a: a.advisor.layers, agent, layers), problem, batch, best)

        return jax.value_and_grad(value)(layers)

    return lambda: jax.block_until_ready(step(agent.advisor.layers, batch, best))


class TorchCluster:
    """The cost of `problem.cluster_cost` in PyTorch, and the calibrator as a cvxpylayers layer."""

    def __init__(self, problem, weights: tuple[float, float, float]):
        def figures(name):
            return torch.tensor(CLUSTER.of_kinds(name))

        self.standby, self.speed, self.idle, self.losses = map(figures, ("standby", "speed", "idle", "losses"))
        per_load = CLUSTER.delay_price + CLUSTER.energy_price * figures("dynamic") / self.speed
        self.ease = self.speed / per_load
        self.Q = torch.tensor(np.asarray(problem.Q))
        self.weights = weights
        self.layer = self._layer(sum(weights))

    def _layer(self, total: float) -> CvxpyLayer:
        x, y, anchor = cp.Variable(3), cp.Parameter(1, nonneg=True), cp.Parameter(3)
        on = x + self.standby.numpy()
        being_on = CLUSTER.energy_price * (self.idle.numpy() @ on + 0.5 * self.losses.numpy() @ cp.square(on))
        serving = cp.quad_over_lin(y, self.ease.numpy() @ on)
        beyond = (y[0] - CLUSTER.headroom * self.speed.numpy() @ on) / CLUSTER.softness
        late = CLUSTER.overload_price * CLUSTER.softness * cp.logistic(beyond)
        root = np.sqrt(total) * np.linalg.cholesky(self.Q.numpy()).T
        pull = cp.sum_squares(root @ x - root @ anchor)
        limits = [x >= 0, x <= CLUSTER.of_kinds("capacity")]
        problem = cp.Problem(cp.Minimize(being_on + serving + late + pull), limits)
        assert problem.is_dpp()
        return CvxpyLayer(problem, parameters=[y, anchor], variables=[x])

    def hitting(self, x, y):
        """f(x, y) of a batch."""
        on = x + self.standby
        being_on = CLUSTER.energy_price * (on @ self.idle + 0.5 * on**2 @ self.losses)
        beyond = (y[:, 0] - CLUSTER.headroom * on @ self.speed) / CLUSTER.softness
        late = CLUSTER.overload_price * CLUSTER.softness * torch.nn.functional.softplus(beyond)
        return being_on + y[:, 0] ** 2 / (on @ self.ease) + late

    def calibrate(self, y, previous, minimizer, advice):
        """R_lambda of a batch."""
        pulls = zip(self.weights, (previous, minimizer, advice), strict=True)
        anchor = sum(weight * point for weight, point in pulls) / sum(self.weights)
        return self.layer(y, anchor)[0]


def torch_weights(agent) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The network's layers."""
    return [
        tuple(torch.tensor(np.asarray(part, float), requires_grad=True) for part in (layer.weight, layer.bias))
        for layer in agent.advisor.layers
    ]


def torch_step(cluster, agent, layers, batch, best, minimizers, hours: int):
    """The same loss over the first `hours`, and its backward pass."""
    contexts, actions = agent.advisor.contexts, agent.advisor.actions
    upper = torch.tensor(CLUSTER.of_kinds("capacity"))
    as_torch = {"offset": torch.tensor(np.asarray(actions.offset)), "scale": torch.tensor(np.asarray(actions.scale))}
    x = torch.tensor(np.asarray(batch.x0))
    ys, targets, vs = (torch.tensor(np.asarray(a)) for a in (batch.contexts, best.actions, minimizers))
    cost, error = 0.0, 0.0
    for t in range(hours):
        y = ys[:, t]
        hidden = torch.cat(
            [(y - float(contexts.offset)) / float(contexts.scale), (x - as_torch["offset"]) / as_torch["scale"]], -1
        )
        for weight, bias in layers[:-1]:
            hidden = torch.relu(hidden @ weight.T + bias)
        weight, bias = layers[-1]
        advice = (hidden @ weight.T + bias) * as_torch["scale"] + as_torch["offset"]
        advice = torch.minimum(torch.clamp(advice, min=0.0), upper)
        before, x = x, cluster.calibrate(y, x, vs[:, t], advice)
        move = x - before
        cost = cost + cluster.hitting(x, y) + torch.sum(move @ cluster.Q * move, -1)
        error = error + torch.sum((advice - targets[:, t]) ** 2, -1)
    oracle_cost = torch.tensor(np.asarray(best.cost))
    loss = MU * torch.mean(error / oracle_cost) + (1 - MU) * torch.mean(cost) / torch.mean(oracle_cost)
    loss.backward()
    return loss.item()


def cpu_seconds(work) -> float:
    """CPU time of this process and its threads."""
    before = time.process_time()
    work()
    return time.process_time() - before


def main() -> None:
    """Print both times, their ratio, and how well loss and gradient agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    problem, agent, batch, best = setting()
    ours = our_step(problem, agent, batch, best)
    value, slope = ours()
    seconds = statistics.median(cpu_seconds(ours) for _ in range(repeats))

    lambda2 = float(ec.theory.optimal_lambda2(problem.m, problem.alpha, problem.beta, TRUST))
    cluster, layers = TorchCluster(problem, (1.0, lambda2, TRUST)), torch_weights(agent)
    hours = batch.horizon
    minimizers = cheapest_actions(problem, batch.contexts.reshape(-1, 1)).reshape(BATCH, hours, 3)
    torch_step(cluster, agent, torch_weights(agent), batch, best, minimizers, hours=1)
    found = []
    theirs = cpu_seconds(lambda: found.append(torch_step(cluster, agent, layers, batch, best, minimizers, hours)))

    flat = np.concatenate([np.asarray(leaf).ravel() for layer in slope for leaf in (layer.weight, layer.bias)])
    other = np.concatenate([part.grad.numpy().ravel() for layer in layers for part in layer])
    away = np.linalg.norm(flat - other) / np.linalg.norm(flat)
    print(f"one training step: d = 3, batch {BATCH}, {hours} hours, double precision")
    print(f"ecl2o, bounded Newton       {seconds:9.3f} CPU s   loss {float(value):.6f}")
    print(f"PyTorch, cvxpylayers        {theirs:9.3f} CPU s   loss {found[0]:.6f}   gradient {away:.1e} away")
    print(f"times ours                  {theirs / seconds:9.0f}   (wanted: 100)")


if __name__ == "__main__":
    main()
