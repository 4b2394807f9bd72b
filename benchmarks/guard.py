"""What a guard costs: the time of a guarded step over that of the same agent unguarded, in one run.

Run: python benchmarks/guard.py. Asserts that every ratio of one promise is below 3; three promises are printed beside them.
Programs run in the calling thread.
"""

import time

import jax
import numpy as np

import ecl2o as ec

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_enable_async_dispatch", False)

LIMIT = 3.0
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def best_of(call, repeats: int = 15) -> float:
    """The shortest of several timings, after one call to compile."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def rollout_step(agent, instances) -> float:
    """Seconds per step and instance of a vmapped roll-out."""
    run = jax.jit(jax.vmap(lambda s: ec.rollout(agent, PROBLEM, s).actions))
    runs, steps = instances.contexts.shape[:2]
    return best_of(lambda: run(instances).block_until_ready()) / (runs * steps)


def runner_step(agent, contexts) -> float:
    """Seconds per step of a `Runner` that is fed one context after the other."""
    policy = ec.Policy(agent, PROBLEM)

    def stream():
        runner = ec.Runner(policy, np.zeros(1))
        for context in contexts:
            runner.step(context)

    return best_of(stream, repeats=5) / len(contexts)


def main() -> None:
    """Time the three and print a table."""
    rng = np.random.default_rng(0)
    instances = ec.Instance(rng.normal(size=(256, 1)), rng.normal(size=(256, 240, 1)))
    contexts = rng.normal(size=(300, 1))
    advisor = ec.advisors.MLP(dim=1, context_dim=1, key=jax.random.key(0))
    alone = ec.MLAROBD(advisor)
    three = [ec.Promise(1.75), ec.Promise(2.5, period=24), ec.Promise(1.9, ec.Reference.EXPERT, "ROBD", period=168)]
    agents = {"alone": alone, "Guarded": ec.Guarded(alone), "Competitive": ec.Competitive(alone)}
    agents["Promises"] = ec.Promises(alone, three, baseline=ec.ROBD())
    worst = 0.0
    for place, seconds in (
        ("rollout", lambda agent: rollout_step(agent, instances)),
        ("runner", lambda agent: runner_step(agent, contexts)),
    ):
        times = {name: seconds(agent) for name, agent in agents.items()}
        for name, value in times.items():
            factor = value / times["alone"]
            worst = worst if name == "Promises" else max(worst, factor)
            print(f"{place:8} {name:12} {1e6 * value:9.3f} us a step   {factor:5.2f} x")
    if worst >= LIMIT:
        raise SystemExit(f"a guard costs {worst:.2f} times the unguarded step; the limit is {LIMIT}.")


if __name__ == "__main__":
    main()
