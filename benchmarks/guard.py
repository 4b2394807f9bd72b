"""What a guard costs: the time of a guarded step over that of the same agent unguarded, in one run.

Run: python benchmarks/guard.py. Asserts that every ratio of one promise is below 3, and that of three promises in the runner at
most 1.6. Programs run in the calling thread.
"""

import time

import jax
import numpy as np

import ecl2o as ec

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_enable_async_dispatch", False)

LIMIT, LIMIT_OF_THREE = 3.0, 1.6
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def best_of(calls: dict, repeats: int = 25) -> dict[str, float]:
    """The shortest of several timings of each, taken in turn, after one call to compile."""
    times = {name: [] for name in calls}
    for _ in range(1 + repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: min(found[1:]) for name, found in times.items()}


def rollout_of(agent, instances):
    """A vmapped roll-out, as a call."""
    run = jax.jit(jax.vmap(lambda s: ec.rollout(agent, PROBLEM, s).actions))
    return lambda: run(instances).block_until_ready()


def stream_of(agent, contexts):
    """A `Runner` that is fed one context after the other, as a call."""
    runner = ec.Runner(ec.Policy(agent, PROBLEM), np.zeros(1))

    def stream():
        for context in contexts:
            runner.step(context)

    return stream


def main() -> None:
    """Time them and print a table."""
    rng = np.random.default_rng(0)
    instances = ec.Instance(rng.normal(size=(256, 1)), rng.normal(size=(256, 240, 1)))
    contexts = rng.normal(size=(300, 1))
    advisor = ec.advisors.MLP(dim=1, context_dim=1, key=jax.random.key(0))
    alone = ec.MLAROBD(advisor)
    three = [ec.Promise(1.75), ec.Promise(2.5, period=24), ec.Promise(1.9, ec.Reference.EXPERT, "ROBD", period=168)]
    agents = {"alone": alone, "Guarded": ec.Guarded(alone), "Competitive": ec.Competitive(alone)}
    agents["Promises"] = ec.Promises(alone, three, baseline=ec.ROBD())
    worst = of_three = 0.0
    for place, call_of, given, steps in (
        ("rollout", rollout_of, instances, 256 * 240),
        ("runner", stream_of, contexts, len(contexts)),
    ):
        times = best_of({name: call_of(agent, given) for name, agent in agents.items()})
        for name, value in times.items():
            factor = value / times["alone"]
            worst = worst if name == "Promises" else max(worst, factor)
            of_three = factor if name == "Promises" else of_three  # the runner's comes last
            print(f"{place:8} {name:12} {1e6 * value / steps:9.3f} us a step   {factor:5.2f} x")
    if worst >= LIMIT:
        raise SystemExit(f"a guard costs {worst:.2f} times the unguarded step; the limit is {LIMIT}.")
    if of_three > LIMIT_OF_THREE:
        raise SystemExit(f"three promises cost {of_three:.2f} times the unguarded step; the limit is {LIMIT_OF_THREE}.")


if __name__ == "__main__":
    main()
