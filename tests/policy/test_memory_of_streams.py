"""A policy whose streams would fill the machine is refused before anything is made for it."""

import pytest

import ecl2o as ec
from ecl2o.exceptions import MemoryLimitError, PolicyFileError
from ecl2o.policy.start_run import check_memory

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
MANY = 1_000_000  # each of these numbers is allowed by itself
TOO_LARGE = {
    "profile": ec.Policy(ec.RHC(3, truncate=False), PROBLEM, ec.forecasters.RollingProfile(days=MANY, period=MANY)),
    "naive": ec.Policy(ec.RHC(3, truncate=False), PROBLEM, ec.forecasters.FromFunction(lambda y, w: y[:w], 10**12)),
    "copies": ec.Policy(ec.AFHC(MANY, truncate=False), PROBLEM, ec.forecasters.Persistence()),
    "advisor": ec.Policy(ec.advisors.SeasonalLinear(1, 1, period=MANY, days=MANY, ahead=1), PROBLEM),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_neither_the_file_nor_the_run_is_accepted(name):
    policy = TOO_LARGE[name]
    with pytest.raises(
        PolicyFileError, match=r"x\.ecl2o cannot be used: one stream would take \d+ GiB .* at most 1 GiB"
    ):
        check_memory(policy, "x.ecl2o")
    with pytest.raises(MemoryLimitError, match="windows, periods, days or horizons are too long"):
        ec.Runner(policy, [0.0])


def test_what_a_step_makes_counts_too():
    """The state of a planner is small, however far it looks."""
    policy = ec.Policy(ec.RHC(10 * MANY, truncate=False), PROBLEM, ec.forecasters.Persistence())
    check_memory(policy, "x.ecl2o")
    with pytest.raises(PolicyFileError, match="one stream would take 153 MiB of memory, and at most 64 MiB"):
        check_memory(policy, "x.ecl2o", most=1 << 26)


def test_what_cannot_be_run_for_another_reason_is_left_to_the_run():
    curved = ec.Problem(ec.CurvedTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    check_memory(ec.Policy(ec.LAI(), curved), "x.ecl2o")


@pytest.mark.parametrize("settings", [{"harmonics": 10**6}, {"lags": 10**6}, {"period": 10**7}])
def test_a_regression_with_endless_tables_is_refused(settings):
    with pytest.raises(ValueError, match="must be at most"):
        ec.advisors.OnlineRidge(**settings)
