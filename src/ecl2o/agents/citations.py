"""Whom to cite for an agent: BibTeX of the original work of everything inside it."""

from ecl2o.agents.base import AbstractAgent, walk_agents

_LIBRARY = "li2022expert"

_ENTRIES = {
    _LIBRARY: """@article{li2022expert,
  author  = {Li, Pengfei and Yang, Jianyi and Ren, Shaolei},
  title   = {Expert-Calibrated Learning for Online Optimization with Switching Costs},
  journal = {Proceedings of the ACM on Measurement and Analysis of Computing Systems},
  volume  = {6},
  number  = {2},
  year    = {2022},
  note    = {Article 28},
  doi     = {10.1145/3530894},
}""",
    "goel2019beyond": """@inproceedings{goel2019beyond,
  author    = {Goel, Gautam and Lin, Yiheng and Sun, Haoyuan and Wierman, Adam},
  title     = {Beyond Online Balanced Descent: An Optimal Algorithm for Smoothed Online Optimization},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2019},
}""",
    "chen2018smoothed": """@inproceedings{chen2018smoothed,
  author    = {Chen, Niangjun and Goel, Gautam and Wierman, Adam},
  title     = {Smoothed Online Convex Optimization in High Dimensions via Online Balanced Descent},
  booktitle = {Conference on Learning Theory},
  year      = {2018},
}""",
    "zhang2021revisiting": """@inproceedings{zhang2021revisiting,
  author    = {Zhang, Lijun and Jiang, Wei and Lu, Shiyin and Yang, Tianbao},
  title     = {Revisiting Smoothed Online Learning},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021},
}""",
    "zinkevich2003online": """@inproceedings{zinkevich2003online,
  author    = {Zinkevich, Martin},
  title     = {Online Convex Programming and Generalized Infinitesimal Gradient Ascent},
  booktitle = {International Conference on Machine Learning},
  year      = {2003},
}""",
    "lin2011dynamic": """@inproceedings{lin2011dynamic,
  author    = {Lin, Minghong and Wierman, Adam and Andrew, Lachlan L. H. and Thereska, Eno},
  title     = {Dynamic Right-Sizing for Power-Proportional Data Centers},
  booktitle = {IEEE INFOCOM},
  year      = {2011},
}""",
    "lin2012online": """@inproceedings{lin2012online,
  author    = {Lin, Minghong and Liu, Zhenhua and Wierman, Adam and Andrew, Lachlan L. H.},
  title     = {Online Algorithms for Geographical Load Balancing},
  booktitle = {International Green Computing Conference},
  year      = {2012},
}""",
    "chen2016using": """@inproceedings{chen2016using,
  author    = {Chen, Niangjun and Comden, Joshua and Liu, Zhenhua and Gandhi, Anshul and Wierman, Adam},
  title     = {Using Predictions in Online Optimization: Looking Forward with an Eye on the Past},
  booktitle = {ACM SIGMETRICS},
  year      = {2016},
}""",
    "li2020online": """@article{li2020online,
  author  = {Li, Yingying and Qu, Guannan and Li, Na},
  title   = {Online Optimization with Predictions and Switching Costs: Fast Algorithms and the Fundamental Limit},
  journal = {IEEE Transactions on Automatic Control},
  year    = {2020},
}""",
    "bhuyan2023best": """@misc{bhuyan2023best,
  author = {Bhuyan, Neelkamal and Mukherjee, Debankur and Wierman, Adam},
  title  = {Best of Both Worlds Guarantees for Smoothed Online Quadratic Optimization},
  year   = {2023},
}""",
    "antoniadis2020online": """@inproceedings{antoniadis2020online,
  author    = {Antoniadis, Antonios and Coester, Christian and Eli{\\'a}{\\v{s}}, Marek and Polak, Adam and Simon, Bertrand},
  title     = {Online Metric Algorithms with Untrusted Predictions},
  booktitle = {International Conference on Machine Learning},
  year      = {2020},
}""",
    "rutten2021new": """@misc{rutten2021new,
  author        = {Rutten, Daan and Mukherjee, Debankur},
  title         = {A New Approach to Capacity Scaling Augmented With Unreliable Machine Learning Predictions},
  year          = {2021},
  eprint        = {2101.12160},
  archiveprefix = {arXiv},
}""",
    "li2023robust": """@inproceedings{li2023robust,
  author    = {Li, Pengfei and Yang, Jianyi and Wierman, Adam and Ren, Shaolei},
  title     = {Robust Learning for Smoothed Online Convex Optimization with Feedback Delay},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2023},
}""",
}

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
    "Independent": (),
    "Periodic": (),
}


def citation(agent: AbstractAgent) -> str:
    """BibTeX entries of the work behind an agent and every agent inside it, each once, the outermost first.

    An agent of your own, and what has no other source, is cited as the paper that this library follows.

    Args:
        agent: what to cite.

    >>> from ecl2o.agents import ROBD
    >>> print(citation(ROBD()).splitlines()[0])
    @inproceedings{goel2019beyond,
    """
    keys = dict.fromkeys(key for inner in walk_agents(agent) for key in _works(inner)) or {_LIBRARY: None}
    return "\n\n".join(_ENTRIES[key] for key in keys)


def named_citation(name: str | None = None) -> str:
    """BibTeX entries of the work behind the library's agent class of that name; None: the paper that the library follows.

    >>> print(named_citation("RHC").splitlines()[0])
    @inproceedings{lin2012online,
    """
    keys = _WORKS.get(name or "", ()) or (_LIBRARY,)
    return "\n\n".join(_ENTRIES[key] for key in keys)


def _works(agent: AbstractAgent) -> tuple[str, ...]:
    ours = type(agent).__module__.startswith("ecl2o.")
    return _WORKS.get(type(agent).__name__, (_LIBRARY,)) if ours else (_LIBRARY,)
