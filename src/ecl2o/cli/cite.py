"""`ecl2o cite`: whom to cite."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ecl2o.cli import output
from ecl2o.cli.jax_setup import use_cached_programs

_ANY_DAY = 24  # steps; whom to cite does not depend on it
# Rows of the studies that are not named after the class of their agent.
_ROWS = {"oracle": None, "ecl2o": "MLAROBD", "ecl2otuned": "MLAROBD", "seasonal": "MLAROBD"}


def cite(
    agent: Annotated[
        str | None,
        typer.Argument(
            help="An agent (ROBD), a name in compare or in the report (r-obd), or a policy file. (default: the library's paper)"
        ),
    ] = None,
    json: output.Json = False,
) -> None:
    """Print the BibTeX entries of the papers behind an agent."""
    entries = _cite(agent).split("\n\n")
    if json:
        output.print_json({"agent": agent, "bibtex": entries})
    else:
        typer.echo("\n\n".join(entries))


def _cite(agent: str | None) -> str:
    from ecl2o.agents.citations import citation, named_citation
    from ecl2o.fitting.named_agents import NAMED_AGENTS

    if agent is None:
        return named_citation(None)
    if agent.endswith(".ecl2o") or Path(agent).is_file():
        from ecl2o.policy import load

        use_cached_programs()
        return citation(load(agent).agent)
    if agent.lower() in NAMED_AGENTS:
        return citation(NAMED_AGENTS[agent.lower()](_ANY_DAY))
    return named_citation(_class_name(agent))


def _makes_agents(entry: Any) -> bool:
    """Return whether it is a class of agents, or a function that returns one."""
    from ecl2o.agents import AbstractAgent

    made = entry if isinstance(entry, type) else getattr(entry, "__annotations__", {}).get("return")
    return isinstance(made, type) and issubclass(made, AbstractAgent) and made is not AbstractAgent


def _class_name(agent: str) -> str | None:
    """Return the class or function that is meant: `mla-robd`, `MLAROBD` and `MLA_ROBD` are the same."""
    from ecl2o import agents
    from ecl2o.agents import advisors

    key = "".join(letter for letter in agent.lower() if letter.isalnum())
    if key in _ROWS:
        return _ROWS[key]
    found = {name: entry for module in (agents, advisors) for name, entry in vars(module).items()}
    names = {name.lower(): name for name, entry in found.items() if _makes_agents(entry)}
    if key not in names:
        raise typer.BadParameter(f"no agent is called {agent!r}. There are: {', '.join(sorted(names.values()))}.")
    return names[key]
