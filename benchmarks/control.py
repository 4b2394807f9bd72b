"""A year of hours for 1,000 guarded batteries, beside 1,000 guarded trackers, in one run.

Run: python benchmarks/control.py [--sites 1000] [--hours 8760]. CPU time counts, and the two take turns. Ends with an error if
batteries take more than 20 times the CPU time of trackers.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from timing import interleaved, pin_to_one_core

import ecl2o as ec

LIMIT = 20.0


def main() -> None:
    """Time both, with advice that the guards must change, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=8760)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    pin_to_one_core()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    demand = rng.normal(size=(options.sites, options.hours, 1))
    advice = ec.advisors.Fixed(3 * rng.normal(size=(options.hours, 1)))
    scales = jnp.asarray(rng.uniform(0.5, 2.0, options.sites))

    def line(scale):
        return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis(5.0 * scale * jnp.eye(1)))

    def battery(scale):
        plain = ec.battery(alpha=10.0, charge=0.05)
        return ec.ControlProblem(plain.F, plain.B, plain.E, plain.M * scale)

    def run(make, problem, states: int, own: bool):
        """Return a call that runs all sites; `own`: each has matrices of its own."""
        days = ec.Instance(np.zeros((options.sites, states)), demand)

        @jax.jit
        def all_sites(scales, ratio, days):
            def one(scale, day):
                return ec.rollout(make(advice, ratio), problem(scale if own else 1.0), day).cost

            return jax.vmap(one)(scales, days)

        return lambda: all_sites(scales, 2.5, days)

    for own in (False, True):
        print("each site with its own matrices" if own else "all sites alike")
        calls = {
            "trackers": run(ec.Competitive, line, 1, own),
            "batteries": run(ec.CompetitiveControl, battery, 2, own),
        }
        seconds = interleaved(calls, options.rounds)
        base, ours = (min(each) for each in seconds.values())
        for name, each in seconds.items():
            print(f"  {name:10} {min(each):8.2f} s of CPU   {min(each) / base:5.1f} x")
        if ours > LIMIT * base:
            raise SystemExit(
                f"batteries take {ours / base:.1f} times the CPU time of trackers; the limit is {LIMIT:g}."
            )


if __name__ == "__main__":
    main()
