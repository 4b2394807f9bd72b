"""How the command line is laid out: commands do not know each other."""

import ast
import inspect
import sys

import pytest

from ecl2o.cli import app

COMMANDS = sorted(str(command.callback.__module__) for command in app.registered_commands if command.callback)


def imported_modules(name: str) -> set[str]:
    """Every module that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[name]))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_no_other_command(name):
    assert not imported_modules(name) & set(COMMANDS)


def test_every_command_has_a_file_of_its_own():
    assert len(set(COMMANDS)) == len(COMMANDS)
