"""The paper's whole trade-off by `ecl2o sweep`, beside what the same would take the way the authors wrote it.

    python benchmarks/trade_off.py                                                        17 minutes on two idle cores
    python benchmarks/trade_off.py --kappa 0                                              15, without PureML's other weights
    python benchmarks/trade_off.py --seeds 1 --network mlp --trust 0.5 --mu 0 --quick     a trial

6 trusts x 5 mus x 10 seeds and both networks, with all else that the command does by default (PureML, two stages, guards,
figures), by two workers that have compiled nothing before; any option of `ecl2o sweep` may be given instead. In the same run,
before and after it, an epoch in eager PyTorch (`benchmarks/training.py`), on one core, in CPU seconds. What all trainings
would take at that pace is extrapolated, PureML's included. As in the authors' code, a step unrolls two trajectories there, where
the sweep's loss needs one, to which up to a factor of two of the ratio is due.
Needs the extras `bench` and `fleet`: `make bench-install`.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from training import BATCH, WINDOWS, TorchOptimizer, the_case, torch_trainer

from fleet import run

DEFAULTS = ("--seeds", "10", "--network", "lstm,mlp", "--workers", "2")
EPOCH = -(-WINDOWS // BATCH)  # steps


class TorchMLP(torch.nn.Module):
    """The paper's network: three layers of ten ReLU neurons."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [(torch.nn.Linear(inputs, 10), torch.nn.ReLU()) for inputs in (2, 10, 10)]
        self.layers = torch.nn.Sequential(*(layer for pair in hidden for layer in pair), torch.nn.Linear(10, 1))

    def forward(self, context, previous, memory):
        """One step for a batch: advice, and no memory."""
        return self.layers(torch.cat([context, previous], dim=-1)), memory


def main() -> None:
    """Measure and print."""
    data, _, _, best = the_case()
    networks = {"lstm": TorchOptimizer, "mlp": TorchMLP}
    theirs = {name: torch_trainer(data, *best, network=network) for name, network in networks.items()}
    for train in theirs.values():
        train(3)
    epochs = {name: [epoch(train)] for name, train in theirs.items()}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sweep"
        # Of two options alike the last counts.
        took = run(Path(folder), "sweep", *DEFAULTS, *sys.argv[1:], "--out", out)
        rows = pd.read_parquet(out / "sweep.parquet")
        steps = json.loads((out / "results.json").read_text())["training_steps"]
    trained = Counter(rows[rows["family"].isin(["ec-l2o", "pure-ml"])]["network"])
    print(
        f"ecl2o sweep: {took.seconds / 60:.1f} minutes, {took.processor / 60:.1f} of CPU, compilation and scores counted; "
        f"{sum(trained.values())} trainings of {steps} steps"
    )
    total = 0.0
    for name, count in trained.items():
        epochs[name].append(epoch(theirs[name]))
        seconds = sum(epochs[name]) / len(epochs[name])
        total += count * steps / EPOCH * seconds
        seconds_text = " and ".join(f"{each:.2f}" for each in epochs[name])
        print(
            f"{name}: {count} trainings; eager PyTorch {seconds_text} s an epoch of {EPOCH} steps, torch {torch.__version__}"
        )
    print(
        f"at that pace, extrapolated: {total / 3600:.1f} hours of one core, {total / 7200:.1f} hours on two; "
        f"{total / 2 / took.seconds:.0f} times as long"
    )


def epoch(train: Callable[[int], float]) -> float:
    """Seconds of an epoch."""
    return EPOCH * train(EPOCH)


if __name__ == "__main__":
    main()
