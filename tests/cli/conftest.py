"""One training for all tests of the operators' commands."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from ecl2o.cli.commands import app

from .operator_files import DAYS, write_series

TRAINED_WITH = ("--column", "demand", "--promise", "2.2", "--per", "day", "--alpha", "5", "--steps", "2", "--seed", "3")
SPLIT = ("--training-days", "14", "--validation-days", "4")
TESTED = DAYS - 14 - 4  # days; what is asked about as many of them runs the programs of `fit`


class Fitted(NamedTuple):
    policy: Path
    data: Path
    report: dict


@pytest.fixture(scope="session")
def fitted(tmp_path_factory) -> Fitted:
    """A policy with a promise, made by `ecl2o fit --json`, and what that said."""
    folder = tmp_path_factory.mktemp("fitted")
    data, policy = write_series(folder / "demand.csv"), folder / "policy.ecl2o"
    result = CliRunner().invoke(app, ["fit", str(data), "--out", str(policy), *TRAINED_WITH, *SPLIT, "--json"])
    assert result.exit_code == 0, result.stderr
    return Fitted(policy, data, json.loads(result.stdout))


@pytest.fixture
def ecl2o():
    """Run a command in this process."""

    def run(*arguments: object, stdin: str | None = None):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run
