"""BibTeX of the original work behind an agent and everything inside it."""

import importlib.resources
import re

from ecl2o.agents.base import AbstractAgent, walk_agents

_LIBRARY = "li2022expert"

_BIBTEX = importlib.resources.files("ecl2o.agents").joinpath("references.bib").read_text(encoding="utf-8")
_ENTRIES = {re.findall(r"{(\w+),", entry)[0]: entry for entry in _BIBTEX.strip().split("\n\n")}

# By class name, so that this file needs none of theirs. An agent that is not here is cited as the library's paper.
_WORKS: dict[str, tuple[str, ...]] = {
    "HittingMinimizer": ("zhang2021revisiting",),
    "ROBD": ("goel2019beyond",),
    "MLAROBD": (_LIBRARY, "goel2019beyond"),
    "FollowPrediction": ("antoniadis2020online",),
    "Switch": ("antoniadis2020online",),
    "OBD": ("chen2018smoothed",),
    "GreedyOBD": ("goel2019beyond",),
    "OGD": ("zinkevich2003online",),
    "LAI": ("bhuyan2023best",),
    "LCP": ("lin2011dynamic",),
    "RHC": ("lin2012online",),
    "AFHC": ("lin2012online",),
    "CHC": ("chen2016using",),
    "RHGD": ("li2020online",),
    "ABCS": ("rutten2021new",),
    "Guarded": ("li2023robust",),
    "Mixture": ("derooij2014follow",),
    "FourierRegression": ("rahimi2007random",),
    "CompetitiveControl": ("goel2022competitive",),
    "HInfinity": ("basar1995h",),
    "LQR": ("kalman1960contributions",),
    "Independent": (),
    "Periodic": (),
    "WithinLimits": (),
}


def citation(agent: AbstractAgent) -> str:
    """Return the BibTeX entries of the work behind an agent and every agent inside it, each once, the outermost first.

    Your own agents, and agents without another source, cite the paper that this library follows.

    Args:
        agent: Your own agent or one of the library.

    >>> from ecl2o.agents import ROBD
    >>> print(citation(ROBD()).splitlines()[0])
    @inproceedings{goel2019beyond,
    """
    keys: dict[str, None] = {}
    for inner in walk_agents(agent):
        ours = type(inner).__module__.startswith("ecl2o.")
        for name in inner.known_as:
            keys |= dict.fromkeys(_WORKS.get(name, (_LIBRARY,)) if ours else (_LIBRARY,))
    return "\n\n".join(_ENTRIES[key] for key in keys or {_LIBRARY})


def named_citation(name: str | None = None) -> str:
    """Return the BibTeX entries behind the agent class of that name; None: the paper that the library follows.

    >>> print(named_citation("RHC").splitlines()[0])
    @inproceedings{lin2012online,
    """
    return "\n\n".join(_ENTRIES[key] for key in _WORKS.get(name or "", ()) or (_LIBRARY,))
