"""What the tests of learning share."""

import jaxtyping
import pytest


@pytest.fixture
def as_users_run_it():
    """Without the run-time type checks of the test run, which would refuse a wrong word before our own message does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
