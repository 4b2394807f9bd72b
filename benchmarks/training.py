"""Training speed: EC-L2O here beside the same work in eager PyTorch, the way the authors wrote it.

Both train the authors' network (3 LSTM layers of 10) on the same windows (1,416 of 24 hours, batch 50), and both unroll two
trajectories per step: the calibrated one (billed) and the standalone one (whose error is penalised). PyTorch runs a Python
loop over time steps with a closed-form calibration and no DataLoader. One process on one core, interleaved, in CPU seconds of
this process, which other load on the machine does not inflate; the figures are the ratio per training step, and that of the
whole training with our compilation counted. `--all-cores` leaves both the cores they find.
Needs the extra `bench`: `make bench-install`.

    .venv/bin/python benchmarks/training.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
import time

import jax
import numpy as np
import torch
from timing import pin_to_one_core

import ecl2o as ec

WINDOWS, HOURS, BATCH, ALPHA, TRUST, MU, COST_SCALE = 1416, 24, 50, 10.0, 0.5, 0.6, 100.0
AUTHORS_STEPS, _ = ec.authors_schedule(WINDOWS, BATCH)


def windows(seed: int = 0) -> np.ndarray:
    """Windows of 25 hours from a smooth daily series, like the case study's contexts."""
    rng = np.random.default_rng(seed)
    hours = np.arange(WINDOWS + HOURS)
    series = 0.5 + 0.3 * np.sin(2 * np.pi * hours / 24) + 0.05 * rng.standard_normal(hours.size)
    return np.lib.stride_tricks.sliding_window_view(np.clip(series, 0, 0.8), HOURS + 1)[:WINDOWS].copy()


class TorchOptimizer(torch.nn.Module):
    """h_W: three LSTM layers of ten and a linear read-out, called one time step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(input_size=2, hidden_size=10, num_layers=3)
        self.readout = torch.nn.Linear(10, 1)

    def forward(self, context, previous, memory):
        """One step for a batch: advice and memory."""
        hidden, memory = self.lstm(torch.cat([context, previous], dim=-1)[None], memory)
        return self.readout(hidden[0]), memory


def torch_loss(model, x0, contexts, best, best_cost, lambda2):
    """The loss mu relu(rho) + (1 - mu) 100 cost: two roll-outs in a Python loop."""
    lambda3, total = TRUST, 1.0 + lambda2 + TRUST
    played, alone = x0, x0
    memory = memory_alone = None
    cost, error = 0.0, 0.0
    for t in range(contexts.shape[1]):
        y = contexts[:, t : t + 1]
        advice, memory = model(y, played, memory)
        pull = played + lambda2 * y + lambda3 * advice
        action = (y + ALPHA * pull) / (1 + ALPHA * total)
        cost = cost + 0.5 * (action - y) ** 2 + 0.5 * ALPHA * (action - played) ** 2
        played = action
        alone, memory_alone = model(y, alone, memory_alone)
        error = error + (alone - best[:, t : t + 1]) ** 2
    return MU * torch.relu(error / best_cost).mean() + (1 - MU) * COST_SCALE * cost.mean()


def torch_trainer(data: np.ndarray, best: np.ndarray, best_cost: np.ndarray, network=TorchOptimizer):
    """A function that runs some training steps in PyTorch and returns the seconds per step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    tensors = [torch.tensor(array, dtype=torch.float32) for array in (data, best, best_cost)]
    lambda2 = float(ec.theory.optimal_lambda2(1.0, ALPHA, ALPHA, TRUST))

    def run(steps: int) -> float:
        start = time.process_time()
        for _ in range(steps):
            chosen = torch.randperm(WINDOWS)[:BATCH]
            y, x, c = (tensor[chosen] for tensor in tensors)
            optimizer.zero_grad()
            torch_loss(model, y[:, :1], y[:, 1:], x, c, lambda2).backward()
            optimizer.step()
        return (time.process_time() - start) / steps

    return run


def jax_trainer(instances: ec.Instance, problem: ec.Problem):
    """The same through `ecl2o.fit`."""
    agent = ec.MLAROBD(ec.advisors.LSTM(1, 1, key=jax.random.key(0)), trust=TRUST)
    loss = ec.CalibratedLoss(mu=MU, prediction_rollout="standalone", cost_scale=COST_SCALE)

    def run(steps: int) -> float:
        start = time.process_time()
        ec.fit(
            agent, problem, instances, loss=loss, key=jax.random.key(1), steps=steps, batch=BATCH, learning_rate=4e-4
        )
        return (time.process_time() - start) / steps

    return run


def the_case() -> tuple[np.ndarray, ec.Instance, ec.Problem, tuple[np.ndarray, np.ndarray]]:
    """The windows, the same as instances of a problem, and their oracles: actions and cost."""
    data = windows()
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(ALPHA, 1))
    instances = ec.Instance(data[:, :1], data[:, 1:, None])
    best = jax.vmap(lambda s: ec.oracle(problem, s))(instances)
    return data, instances, problem, (np.asarray(best.actions[..., 0]), np.asarray(best.cost)[:, None])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="interleaved repetitions")
    parser.add_argument("--all-cores", action="store_true", help="do not keep to one core")
    arguments = parser.parse_args()
    if not arguments.all_cores:
        pin_to_one_core()
    data, instances, problem, best = the_case()
    ours = jax_trainer(instances, problem)
    theirs = torch_trainer(data, *best)
    start = time.process_time()
    ours(100)
    compiled = time.process_time() - start
    theirs(3)
    pairs = [(ours(300), theirs(8)) for _ in range(arguments.rounds)]
    ratios = [slow / fast for fast, slow in pairs]
    fast, slow = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"ecl2o   {1e3 * fast:8.3f} ms per step (median of {arguments.rounds}), first call {compiled:.1f} s with compilation"
    )
    print(f"PyTorch {1e3 * slow:8.3f} ms per step, eager, one thread, torch {torch.__version__}")
    print(f"ratio   {statistics.median(ratios):8.1f} (from {min(ratios):.1f} to {max(ratios):.1f}); target 20, aim 40")
    whole = compiled + fast * AUTHORS_STEPS
    print(
        f"150 epochs ({AUTHORS_STEPS} steps): {whole:.1f} s against {slow * AUTHORS_STEPS:.1f} s, "
        f"compilation counted: {slow * AUTHORS_STEPS / whole:.1f} times"
    )


if __name__ == "__main__":
    main()
