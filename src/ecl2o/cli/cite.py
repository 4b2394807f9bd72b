"""`ecl2o cite`: whom to cite."""

from pathlib import Path
from typing import Annotated

import typer

from ecl2o.cli import output

_SUFFIX = ".ecl2o"
_ANY_DAY = 24  # steps; whom to cite does not depend on it

# Rows of the studies that are not named after the class of their agent.
_ROWS = {"oracle": None, "ecl2o": "MLAROBD", "ecl2otuned": "MLAROBD", "seasonal": "MLAROBD"}


def cite(
    agent: Annotated[
        str | None,
        typer.Argument(
            help="An agent (ROBD), a name of compare or of the report (r-obd), or a policy file; none: the library's paper."
        ),
    ] = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    """Print the BibTeX of the work behind an agent."""
    entries = _entries(agent)
    if json:
        output.print_json({"agent": agent, "bibtex": entries})
    else:
        typer.echo("\n\n".join(entries))


def _entries(agent: str | None) -> list[str]:
    from ecl2o.agents.citations import citation, named_citation
    from ecl2o.fitting.named_agents import NAMED_AGENTS

    if agent is not None and (agent.endswith(_SUFFIX) or Path(agent).is_file()):
        from ecl2o.cli.jax_setup import use_double_precision
        from ecl2o.policy import load

        use_double_precision()
        return citation(load(agent).agent).split("\n\n")
    if agent is not None and agent.lower() in NAMED_AGENTS:
        return citation(NAMED_AGENTS[agent.lower()](_ANY_DAY)).split("\n\n")
    return named_citation(_class_name(agent)).split("\n\n")


def _class_name(agent: str | None) -> str | None:
    """The class that is meant, whatever its spelling: `mla-robd`, `MLAROBD` and `MLA_ROBD` are the same."""
    from ecl2o import agents
    from ecl2o.agents import AbstractAgent, advisors

    if agent is None:
        return None
    asked = "".join(letter for letter in agent.lower() if letter.isalnum())
    if asked in _ROWS:
        return _ROWS[asked]
    classes = [entry for module in (agents, advisors) for entry in vars(module).values() if isinstance(entry, type)]
    names = {kind.__name__.lower(): kind.__name__ for kind in classes if issubclass(kind, AbstractAgent)}
    names = {short: name for short, name in names.items() if not name.startswith("Abstract")}
    if asked not in names:
        known = ", ".join(sorted(names.values()))
        raise typer.BadParameter(f"no agent is called {agent!r}. There are: {known}.")
    return names[asked]
