"""What a guard costs: the time of a guarded step over that of the same agent unguarded, in one run.

    python benchmarks/guard.py
    python benchmarks/guard.py --async-dispatch     # as JAX comes

Asserts that every ratio of one promise is below 3, and that of three promises in the runner at most 1.6: of a step, and of a
step with its share of making the runner if a new one is made every 300 steps. A runner is made once for a process or a stream,
so a step is what a control loop waits for; the second ratio is for those who make many short runs. Programs run in the calling
thread, as in all commands; as JAX comes, a program of more than 1,000 floating-point operations is handed to another thread,
which three promises are and one is not. Steps are measured in wall-clock time, the rest in CPU time.
"""

import argparse
import time

import jax
import numpy as np

import ecl2o as ec

LIMIT, LIMIT_OF_THREE, RUN = 3.0, 1.6, 300


def best_of(calls: dict, repeats: int, clock) -> dict[str, float]:
    """The shortest of several timings of each, taken in turn, after one call to compile."""
    times = {name: [] for name in calls}
    for _ in range(1 + repeats):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: min(found[1:]) for name, found in times.items()}


def main() -> None:
    """Time them and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--async-dispatch", action="store_true", help="leave JAX's dispatch as it comes")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", parser.parse_args().async_dispatch)
    rng, problem = np.random.default_rng(0), ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, dim=1))
    instances = ec.Instance(rng.normal(size=(256, 1)), rng.normal(size=(256, 240, 1)))
    contexts = rng.normal(size=(20, 1))
    alone = ec.MLAROBD(ec.advisors.MLP(dim=1, context_dim=1, key=jax.random.key(0)))
    three = [ec.Promise(1.75), ec.Promise(2.5, period=24), ec.Promise(1.9, ec.Reference.EXPERT, "ROBD", period=168)]
    agents = {"alone": alone, "Guarded": ec.Guarded(alone), "Competitive": ec.Competitive(alone)}
    agents["Promises"] = ec.Promises(alone, three, baseline=ec.ROBD())

    def rollout_of(agent):
        run = jax.jit(jax.vmap(lambda instance: ec.rollout(agent, problem, instance).actions))
        return lambda: run(instances).block_until_ready()

    def stream_of(agent):
        runner = ec.Runner(ec.Policy(agent, problem), np.zeros(1))
        return lambda: [runner.step(context) for context in contexts]

    def making_of(agent):
        policy = ec.Policy(agent, problem)
        return lambda: ec.Runner(policy, np.zeros(1))

    def timed(call_of, repeats, steps, clock=time.process_time):
        best = best_of({name: call_of(agent) for name, agent in agents.items()}, repeats, clock)
        return {name: 1e6 * seconds / steps for name, seconds in best.items()}

    inside, step, making = (
        timed(rollout_of, 15, 256 * 240),
        timed(stream_of, 500, len(contexts), time.perf_counter),
        timed(making_of, 60, RUN),
    )
    runs = {name: step[name] + making[name] for name in agents}
    worst = of_three = 0.0
    for place, found in (("roll-out", inside), ("runner", step), (f"runner, {RUN} steps each", runs)):
        for name, microseconds in found.items():
            factor = microseconds / found["alone"]
            if name != "Promises":
                worst = max(worst, factor)
            elif found is not inside:
                of_three = max(of_three, factor)
            print(f"{place:24} {name:12} {microseconds:9.3f} us a step   {factor:5.2f} x")
    if worst >= LIMIT:
        raise SystemExit(f"a guard costs {worst:.2f} times the unguarded step; the limit is {LIMIT}.")
    if of_three > LIMIT_OF_THREE:
        raise SystemExit(f"three promises cost {of_three:.2f} times the unguarded step; the limit is {LIMIT_OF_THREE}.")


if __name__ == "__main__":
    main()
