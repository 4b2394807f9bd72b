"""What the exact gradient through the calibrator is worth: beside zero-order estimates and surrogates of the calibrator.

The paper argues for differentiating the calibrator without measuring the alternatives. Here they are measured on the
built-in weather year, on two problems: the case study, whose calibrator is a linear map, and the same with actions limited to
a range that is narrower than that of the contexts, where it is not.

    .venv/bin/python benchmarks/gradient_study.py --out docs/figures     # prints both tables and draws the figure
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ecl2o.agents import MLAROBD, ROBD, trainable_mask
from ecl2o.agents.advisors import MLP, Scaling
from ecl2o.data import weather_contexts
from ecl2o.learning import (
    AbstractGradient,
    Backpropagation,
    CalibratedLoss,
    SurrogateCalibrator,
    ZeroOrder,
    fit,
    fit_many,
)
from ecl2o.learning.losses import fix_scale
from ecl2o.offline import oracle
from ecl2o.problem import Box, Instance, Mahalanobis, Problem, SquaredTracking, Trajectory
from ecl2o.running import rollout

TRUST = 0.3
ALPHA = 10.0
LARGEST_ACTION = 0.35  # of the bounded problem; contexts go up to 0.8
LOSS = CalibratedLoss(mu=0.0)

METHODS: dict[str, AbstractGradient] = {
    "back-propagation": Backpropagation(),
    "zero-order, 1 direction": ZeroOrder(1),
    "zero-order, 4": ZeroOrder(4),
    "zero-order, 16": ZeroOrder(16),
    "zero-order, 64": ZeroOrder(64),
    "linear surrogate, straight through": SurrogateCalibrator("linear"),
    "linear surrogate, replacing it": SurrogateCalibrator("linear", straight_through=False),
    "network surrogate, straight through": SurrogateCalibrator("mlp"),
    "network surrogate, replacing it": SurrogateCalibrator("mlp", straight_through=False),
}


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is run: batches of the gradient's error; loss evaluations, seeds and learning rates of each training."""

    warm_up: int = 300
    batches: int = 20
    batch: int = 50
    evaluations: int = 2400
    seeds: int = 3
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2, 1e-1)


@dataclasses.dataclass(frozen=True)
class GradientError:
    """Of one method, means over batches: cosine with the true gradient, |error| / |true|, and its surrogate's errors."""

    cosine: float
    relative: float
    report: dict[str, float]


@dataclasses.dataclass(frozen=True)
class CostReached:
    """Of one method after the given loss evaluations: validation cost over the oracle's, by seed, at its best rate."""

    steps: int
    rate: float
    costs: tuple[float, ...]


class ProblemCase(eqx.Module):
    """One problem of the study with its instances."""

    problem: Problem
    training: Instance
    oracles: Trajectory
    validation: Instance

    @classmethod
    def of(cls, problem: Problem) -> "ProblemCase":
        """Training windows of the built-in year, and its validation days, each from the last context before it."""
        contexts = weather_contexts()
        windows, days = contexts.training_windows(), contexts.validation_days()
        starts = np.concatenate([days.x0[None], days.days[:-1, -1]])
        training, validation = (_project_starts(problem, given) for given in (windows, Instance(starts, days.days)))
        oracles = eqx.filter_jit(jax.vmap(lambda s: oracle(problem, s)))(training)
        return cls(problem, training, oracles, validation)

    def agent(self, seed: int) -> MLAROBD:
        """The paper's network behind the calibrator, untrained, with standardised inputs and outputs.

        Advice is clipped to the action set, and a network whose first advice lies outside it everywhere has no gradient at
        all; standardised, it starts near the oracle's mean action.
        """
        of_contexts = Scaling.of(self.training.contexts.reshape(-1, 1))
        of_actions = Scaling.of(self.oracles.actions.reshape(-1, 1))
        network = MLP(1, 1, key=jax.random.key(seed), contexts=of_contexts, actions=of_actions)
        return MLAROBD(network, trust=TRUST)


def _project_starts(problem: Problem, instances: Instance) -> Instance:
    """The same instances, starting inside the action set."""
    return Instance(jax.vmap(problem.actions.project)(instances.x0), instances.contexts)


def make_problems() -> dict[str, Problem]:
    """The case study, and the same with bounds that bind.

    >>> list(make_problems())
    ['no bounds', 'bounds']
    """
    hitting, switching = SquaredTracking(), Mahalanobis.isotropic(ALPHA, dim=1)
    return {
        "no bounds": Problem(hitting, switching),
        "bounds": Problem(hitting, switching, Box(0.0, LARGEST_ACTION)),
    }


def measure_gradient_errors(
    setting: ProblemCase, methods: dict[str, AbstractGradient], effort: Effort
) -> dict[str, GradientError]:
    """How far each method's gradient is from the true one, on batches, in the middle of a training."""
    agent = fit(
        setting.agent(0),
        setting.problem,
        setting.training,
        loss=LOSS,
        key=jax.random.key(0),
        steps=effort.warm_up,
        batch=effort.batch,
    ).agent
    true = _slopes(Backpropagation(), agent, setting, effort)
    errors = {}
    for name, method in methods.items():
        ready = method.prepare_for(agent, setting.problem, setting.training, setting.oracles, jax.random.key(1))
        errors[name] = compare_gradients(_slopes(ready, agent, setting, effort), true, ready.report())
    return errors


def compare_gradients(
    found: Float[np.ndarray, "b n"], true: Float[np.ndarray, "b n"], report: dict[str, float]
) -> GradientError:
    """How gradients, one for each batch, differ from the true ones."""
    sizes, true_sizes = np.linalg.norm(found, axis=1), np.linalg.norm(true, axis=1)
    cosines = np.sum(found * true, axis=1) / (sizes * true_sizes)
    return GradientError(
        float(cosines.mean()), float(np.mean(np.linalg.norm(found - true, axis=1) / true_sizes)), report
    )


def _slopes(
    gradient: AbstractGradient, agent: MLAROBD, setting: ProblemCase, effort: Effort
) -> Float[np.ndarray, "b n"]:
    """The method's gradients on the same batches of the training set."""
    loss = fix_scale(LOSS, setting.oracles)
    weights, frozen = eqx.partition(agent, trainable_mask(agent))
    shape = (effort.batches, effort.batch)
    places = jax.random.randint(jax.random.key(2), shape, 0, setting.training.x0.shape[0])

    @jax.jit
    def all_slopes(places: Array, keys: Array):
        def one(now):
            indices, key = now
            given, best = jax.tree.map(lambda leaf: leaf[indices], (setting.training, setting.oracles))

            def of(agent):
                return loss(agent, setting.problem, given, best)

            return ravel_pytree(gradient.value_and_grad(of, weights, frozen, key)[1])[0]

        return jax.lax.map(one, (places, keys))

    return np.asarray(all_slopes(places, jax.random.split(jax.random.key(3), effort.batches)))


def train_each(setting: ProblemCase, methods: dict[str, AbstractGradient], effort: Effort) -> dict[str, CostReached]:
    """Train with each method for the same number of loss evaluations; the last validation cost at its best rate."""
    return {name: _train(setting, method, effort) for name, method in methods.items()}


def _train(setting: ProblemCase, method: AbstractGradient, effort: Effort) -> CostReached:
    steps = max(effort.evaluations // method.evaluations, 1)
    runs = [(rate, seed) for rate in effort.rates for seed in range(effort.seeds)]
    results = fit_many(
        [setting.agent(seed) for _, seed in runs],
        setting.problem,
        setting.training,
        losses=LOSS,
        keys=[jax.random.key(seed) for _, seed in runs],
        steps=steps,
        batch=effort.batch,
        learning_rates=[rate for rate, _ in runs],
        gradient=method,
        validation=setting.validation,
    )
    costs = np.array([result.log.validation_cost[-1] for result in results]).reshape(-1, effort.seeds)
    best = int(np.argmin(costs.mean(axis=1)))
    return CostReached(steps, effort.rates[best], tuple(float(cost) for cost in costs[best]))


@eqx.filter_jit
def _mean_costs(setting: ProblemCase):
    def both(instance):
        return rollout(ROBD(), setting.problem, instance).cost, oracle(setting.problem, instance).cost

    return [cost.mean() for cost in jax.vmap(both)(setting.validation)]


def expert_cost(setting: ProblemCase) -> float:
    """R-OBD's validation cost over the oracle's: what the calibrator costs without advice."""
    cost, best = _mean_costs(setting)
    return float(cost / best)


# --- tables and figure ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ProblemResults:
    """What was measured on one problem, by method; `expert` is R-OBD's validation cost over the oracle's."""

    errors: dict[str, GradientError]
    costs: dict[str, CostReached]
    expert: float


def format_tables(measured: dict[str, ProblemResults]) -> str:
    """One table per problem."""
    lines = []
    for problem, found in measured.items():
        errors, costs = found.errors, found.costs
        lines += [f"**{problem}** (R-OBD: {found.expert:.3f})", ""]
        lines += ["| gradient | evaluations a step | cosine | relative error | error of R-hat's Jacobians |"]
        lines[-1] += " steps | rate | validation cost |"
        lines += ["|---|---|---|---|---|---|---|---|"]
        for name, error in errors.items():
            jacobian = f"{error.report['jacobian_error']:.2g}" if error.report else ""
            row = [name, str(METHODS[name].evaluations), f"{error.cosine:.3f}", f"{error.relative:.2g}", jacobian]
            reached = costs[name]
            mean, spread = np.mean(reached.costs), np.std(reached.costs)
            row += [str(reached.steps), f"{reached.rate:g}", f"{mean:.3f} ± {spread:.3f}"]
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


_COLOURS = {"back": "#0072B2", "zero": "#D55E00", "linear": "#009E73", "network": "#CC79A7"}  # Okabe and Ito


def _colour(name: str) -> str:
    return next(colour for start, colour in _COLOURS.items() if name.startswith(start))


def draw(measured: dict[str, ProblemResults], path: Path) -> None:
    """A row per problem: cosine with the true gradient, and cost after equal loss evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(measured), 2, figsize=(11, 3.6 * len(measured)), squeeze=False, sharey=True)
    for (problem, found), (left, right) in zip(measured.items(), axes, strict=True):
        errors, costs = found.errors, found.costs
        names = list(errors)
        rows, colours = np.arange(len(names)), [_colour(name) for name in names]
        left.barh(rows, [errors[name].cosine for name in names], color=colours)
        for row, name in zip(rows, names, strict=True):
            left.text(errors[name].cosine + 0.01, row, f"{errors[name].cosine:.3f}", va="center", fontsize=9)
        left.set(xlim=(0, 1.15), xlabel="cosine with the true gradient", title=f"{problem}: gradient")
        left.set_yticks(rows, names)
        for row, name, colour in zip(rows, names, colours, strict=True):
            seeds = costs[name].costs
            right.scatter(seeds, np.full(len(seeds), row), color=colour, alpha=0.5, s=22)
            right.scatter(np.mean(seeds), row, color=colour, marker="|", s=260, linewidths=2.5)
        right.set(xlabel="validation cost / oracle's (points: seeds, bar: mean)")
        right.set_title(f"{problem}: after equal loss evaluations")
        for axis in (left, right):
            axis.grid(axis="x", alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].invert_yaxis()  # of all, as they share it: the first method on top
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, draw the figure."""
    parser = argparse.ArgumentParser(description="What the exact gradient through the calibrator is worth.")
    parser.add_argument("--out", type=Path, required=True, help="folder for gradient-study.png")
    out = parser.parse_args(arguments).out
    jax.config.update("jax_enable_x64", True)
    measured, effort = {}, Effort()
    for name, problem in make_problems().items():
        setting = ProblemCase.of(problem)
        errors, costs = measure_gradient_errors(setting, METHODS, effort), train_each(setting, METHODS, effort)
        measured[name] = ProblemResults(errors, costs, expert_cost(setting))
    out.mkdir(parents=True, exist_ok=True)
    draw(measured, out / "gradient-study.png")
    print(format_tables(measured))


if __name__ == "__main__":
    main()
