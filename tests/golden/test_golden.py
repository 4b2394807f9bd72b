"""Runs are those that were recorded, number for number.

Here of one third of the groups; tests/golden/record.py --compare runs all of them, and says how far they are apart.
"""

import functools
import os

import pytest

from golden import builders, trajectories
from golden.cases import CASES

EVERY = "ECL2O_EVERY_TRAJECTORY" in os.environ
recorded = functools.cache(trajectories.load)


def test_every_case_has_a_name_of_its_own_and_is_recorded():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert recorded().keys() == set(names)


@pytest.mark.parametrize("case", [case for case in CASES if EVERY or case.third == 0], ids=lambda case: case.name)
def test_a_run_is_the_recorded_one(case):
    apart = trajectories.differences(case, recorded()[case.name], builders.play(case))
    assert {name: value for name, value in apart.items() if value > trajectories.TOLERANCE[case.dtype]} == {}
