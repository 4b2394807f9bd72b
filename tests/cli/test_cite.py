"""`ecl2o cite`, and what all commands have in common: help at once, with an example, and no JAX in it."""

import json
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ecl2o.agents import RHC, Guarded
from ecl2o.cli.commands import app
from ecl2o.policy import Policy, save
from ecl2o.problem import Mahalanobis, Problem, SquaredTracking

runner = CliRunner()


def _names(group, before: str = "") -> list[str]:
    """The commands of a group, those of the groups in it among them: "fit", "fleet fit"."""
    found = []
    for name, command in sorted(group.commands.items()):
        found += _names(command, f"{before}{name} ") if hasattr(command, "commands") else [before + name]
    return found


COMMANDS = _names(get_command(app))


def _cited(*arguments):
    result = runner.invoke(app, ["cite", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_paper_is_the_default():
    assert _cited().startswith("@article{li2022expert,")
    assert json.loads(_cited("--json"))["bibtex"][0].startswith("@article{li2022expert,")


@pytest.mark.parametrize("spelling", ["mla-robd", "MLAROBD", "MLA_ROBD", "ec-l2o", "ec-l2o-tuned"])
def test_spelling_does_not_matter(spelling):
    assert "li2022expert" in _cited(spelling)
    assert "goel2019beyond" in _cited(spelling)


@pytest.mark.parametrize(
    "row", ["oracle", "greedy", "r-obd", "rhc", "pure-ml", "switch", "mla-robd", "seasonal", "guarded"]
)
def test_every_row_of_the_report_can_be_cited(row):
    assert _cited(row).startswith("@")


def test_a_policy_file_cites_what_is_in_it(tmp_path):
    problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    save(tmp_path / "mine.ecl2o", Policy(Guarded(RHC(3)), problem))
    cited = _cited(str(tmp_path / "mine.ecl2o"))
    assert all(key in cited for key in ("li2023robust", "lin2012online", "goel2019beyond"))


def test_unknown_names_end_with_2_and_missing_files_with_1(tmp_path):
    unknown = runner.invoke(app, ["cite", "nobody"])
    assert unknown.exit_code == 2
    assert "MLAROBD" in unknown.stderr
    missing = runner.invoke(app, ["cite", str(tmp_path / "missing.ecl2o")])
    assert missing.exit_code == 1
    assert "missing.ecl2o" in missing.stderr
    (tmp_path / "damaged.ecl2o").write_bytes(b"not a policy")
    damaged = runner.invoke(app, ["cite", str(tmp_path / "damaged.ecl2o")])
    assert damaged.exit_code == 1
    assert damaged.stderr.count("\n") == 1


SERVERS = {"serve", "demo"}  # which draw nothing, and answer over HTTP


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_json(command):
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    words = result.stdout.split()
    assert f"ecl2o {command}" in " ".join(words[words.index("Example:") :])
    if command not in SERVERS:
        assert "--json" in words


def test_help_wraps_where_the_terminal_does():
    """A line that is much shorter than the page ends a paragraph."""
    shown = runner.invoke(app, ["fit", "--help"], env={"COLUMNS": "80"}, terminal_width=80).stdout.splitlines()
    described = [line.strip() for line in shown[: shown.index(next(line for line in shown if "Arguments" in line))]]
    short = [line for line in described if 0 < len(line) < 60 and not line.startswith("Usage")]
    assert all(line.endswith(".") for line in short), short


def test_help_imports_nothing_heavy():
    """`--help` of every command in one fresh process; what it may not import makes commands slow to answer."""
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom ecl2o.cli.commands import app\n"
        "from typer.main import get_command\n"
        "for name in get_command(app).commands:\n    assert CliRunner().invoke(app, [name, '--help']).exit_code == 0, name\n"
        "heavy = {'jax', 'numpy', 'pandas', 'matplotlib', 'scipy', 'sklearn', 'equinox'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_printed():
    assert runner.invoke(app, ["--version"]).stdout.startswith("ecl2o ")
