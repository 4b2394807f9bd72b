"""Make and train all candidates of a fit: regressions through their guard, networks and structured rule by gradients."""

from collections.abc import Sequence

import jax

from ecl2o.agents import MLAROBD, AbstractAgent, Periodic
from ecl2o.agents.advisors import LSTM, MLP, Scaling, SeasonalLinear
from ecl2o.data import Contexts
from ecl2o.fitting.candidates import Candidate, MemoryLengths, untrained_candidates
from ecl2o.fitting.guarded_training import competitive_ridge, train_sites
from ecl2o.fitting.settings import TRAINING, AdvisorName, Progress, with_promise, with_renewal
from ecl2o.fitting.tasks import FitTask, check_promise_feasible
from ecl2o.learning import CalibratedLoss, fit_many
from ecl2o.problem.arrays import to_device

MOST_WINDOWS = 2000
BATCH = 50
GRID = ((0.3, 0.0), (1.0, 0.0), (10.0, 0.0), (1.0, 0.3), (0.5, 0.6))  # (trust, mu) that validation selects from
CORRECTED = "promised-ridge, corrected"


def train_candidates(tasks: Sequence[FitTask], progress: Progress) -> list[list[Candidate]]:
    """Return all candidates of each task, trained where they can be.

    Tasks of one shape have the same candidates in the same order. The regression is trained for all tasks in one program,
    gradient-trained advisors for one task after the other.

    Raises:
        ValueError: If a promise cannot be kept by any algorithm.
    """
    for task in tasks:
        check_promise_feasible(task)
    found: list[list[Candidate]] = [[] for _ in tasks]
    first = tasks[0].contexts
    for advisor in tasks[0].settings.advisors(first.steps_per_day, first.weighted):
        if advisor == "ridge":
            trained = _train_corrections(tasks, progress)
        elif advisor in ("rhc", "r-obd"):
            trained = [[] for _ in tasks]
        else:
            trained = [_train_by_gradient(advisor, task, progress) for task in tasks]
        for mine, task, more in zip(found, tasks, trained, strict=True):
            mine += [*untrained_candidates(advisor, task), *more]
    return found


def _train_corrections(tasks: Sequence[FitTask], progress: Progress) -> list[list[Candidate]]:
    """Return the promised regression with a correction trained through the guard.

    Only for promises that are renewed and misses without weights. The correction is dropped if validation does not clearly
    prefer it.
    """
    contexts, promise = tasks[0].contexts, tasks[0].settings.promise
    period = contexts.steps_per_day
    renewal = None if promise is None else promise.steps(period)
    if renewal is None or contexts.weighted:
        return [[] for _ in tasks]
    steps = tasks[0].settings.training_steps("ridge")
    progress("training the guarded regression", 0, 1)
    trained = train_sites(
        [[competitive_ridge(task.settings.promise, period)] for task in tasks if task.settings.promise is not None],
        [task.problem for task in tasks],
        [task.contexts for task in tasks],
        period=renewal,
        steps=steps,
        learning_rate=TRAINING["ridge"][1],
        checks=min(4, steps),
    )
    progress("training the guarded regression", 1, 1)
    return [
        [Candidate(CORRECTED, "ridge", with_renewal(corrected, renewal), trained=log.best_step > 0)]
        for ((corrected, log),) in trained
    ]


def _train_by_gradient(advisor: AdvisorName, task: FitTask, progress: Progress) -> list[Candidate]:
    """Return one agent per point of the grid, trained through the calibrator, and through the guard of a daily promise.

    A longer promise rarely binds, so its guard is put around what was trained without it.
    """
    contexts, settings = task.contexts, task.settings
    lengths, period, promise = MemoryLengths.of(contexts), contexts.steps_per_day, settings.promise
    keys = [jax.random.key(settings.seed)] * len(GRID)
    untrained = make_advisor(advisor, contexts, jax.random.fold_in(keys[0], 1))
    daily = promise is not None and promise.per == "day"
    agents: list[AbstractAgent] = [MLAROBD(untrained, trust) for trust, _ in GRID]
    if daily:
        agents = [with_promise(agent, promise, period) for agent in agents]
    seasonal = advisor == "seasonal"
    window, history = (lengths.window_steps, lengths.profile_days * period) if seasonal else (period, 0)
    windows = contexts.training_windows(window, history, most=MOST_WINDOWS)
    fitted = fit_many(
        agents,
        task.problem,
        windows,
        losses=[CalibratedLoss(mu=mu) for _, mu in GRID],
        keys=keys,
        steps=settings.training_steps(advisor),
        batch=min(BATCH, windows.x0.shape[0]),
        learning_rates=TRAINING[advisor][1],
        progress=lambda done, total, loss: progress(f"training ({advisor})", done, total),
    )
    found = []
    for (trust, mu), result in zip(GRID, fitted, strict=True):
        # A recurrent network was trained on days, so its memory is restarted every day.
        agent = Periodic(result.agent, period, "history") if advisor == "lstm" else result.agent
        agent = agent if daily else with_promise(agent, promise, period)
        name = f"{advisor}, trust {trust:g}, mu {mu:g}"
        found.append(Candidate(name, advisor, agent, trained=True, trust=trust, mu=mu))
    return found


def make_advisor(advisor: AdvisorName, contexts: Contexts, key) -> AbstractAgent:
    """Return a gradient-trained advisor with its initial weights."""
    dim = contexts.dim
    if advisor == "seasonal":
        days = MemoryLengths.of(contexts).profile_days
        return SeasonalLinear(dim, dim, period=contexts.steps_per_day, days=days)
    scaling = Scaling.of(to_device(contexts.training))
    network = MLP if advisor == "mlp" else LSTM
    return network(dim, dim, key=key, contexts=scaling, actions=scaling)
