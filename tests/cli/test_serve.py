"""`ecl2o serve` and `ecl2o demo`: what they refuse before anything is opened."""

import pytest
from typer.testing import CliRunner

from ecl2o.cli import app


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch, tmp_path):
    monkeypatch.delenv("ECL2O_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--host", "0.0.0.0"], "ECL2O_TOKEN"),
        (["serve", "missing.ecl2o"], "missing.ecl2o"),
        (["serve", "--port", "70000"], "port"),
        (["serve", "--port", "0", "--store", "sqlite://"], "in memory"),
        (["demo", "--speed", "0"], "0.1"),
    ],
)
def test_what_cannot_be_served_is_refused(arguments, said, tmp_path):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_two_policies_of_one_name_are_refused(tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.ecl2o").write_bytes(b"")
    result = CliRunner().invoke(app, ["serve", "one/same.ecl2o", "other/same.ecl2o"])
    assert result.exit_code == 2
    assert "same name" in result.output
