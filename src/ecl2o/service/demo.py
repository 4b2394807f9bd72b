"""The service shown at work: a policy fitted on the built-in weather, and a year of it replayed over HTTP."""

import contextlib
import dataclasses
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ecl2o.agents import ROBD, Competitive, Periodic
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.data import Contexts, weather_contexts
from ecl2o.policy import Contract, Policy, save
from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
from ecl2o.running import plausible_range
from ecl2o.service.client import Client
from ecl2o.service.http import Access, serve
from ecl2o.service.http.app import bind

_HOURS = 24
_HISTORY_DAYS = 30
_ALPHA = 10.0
_PROMISE = 2.5
_SEASONS = {"winter": 35, "spring": 110, "summer": 200, "autumn": 290}  # days of the year on which streams begin


@dataclasses.dataclass(frozen=True)
class Demo:
    """Four seasons of one site at the same time, with a daily promise, and R-OBD without one beside them.

    Args:
        speed: hours of weather in a second.
        port: where the page is; 0 finds a free port.
        steps: stop after so many; None: when the year has been replayed.
    """

    speed: float = 4.0
    port: int = 0
    steps: int | None = None

    def run(self, ready: Callable[[str], None]) -> None:
        """Serve until the weather ends or the process is interrupted; `ready` is told the page's address when it has streams."""
        weather = weather_contexts()
        contexts = weather.values
        bound = bind("127.0.0.1", self.port)
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
            files = {}
            for name, policy in policies(weather).items():
                save(Path(folder) / name, policy)
                files[name] = (Path(folder) / name).read_bytes()
            feeder = threading.Thread(target=self._replay, args=(url, contexts, ready), daemon=True)
            store = f"sqlite:///{Path(folder) / 'streams.db'}"
            serve(store, files, bound, Access(), feeder.start)

    def _replay(self, url: str, contexts: np.ndarray, ready: Callable[[str], None]) -> None:
        with Client(url) as client:
            begun = {}
            for season, day in _SEASONS.items():
                first, past = day * _HOURS, (day - _HISTORY_DAYS) * _HOURS
                begun[f"site-{season}"] = first
                client.put_stream(
                    f"site-{season}", "promised", contexts[first - 1].tolist(), contexts[past:first].tolist()
                )
            begun["summer-r-obd"] = begun["site-summer"]
            client.put_stream("summer-r-obd", "r-obd", contexts[begun["site-summer"] - 1].tolist(), None)
            ready(url)
            for step in range(self.steps or len(contexts)):
                due = time.monotonic() + 1 / self.speed
                client.steps({name: contexts[(first + step) % len(contexts)].tolist() for name, first in begun.items()})
                time.sleep(max(due - time.monotonic(), 0.0))
        os.kill(os.getpid(), signal.SIGINT)


def policies(weather: Contexts) -> dict[str, Policy]:
    """A regression that is fitted on the contexts before and goes on learning, behind a daily promise; and R-OBD."""
    problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=_ALPHA, dim=1))
    guard = Competitive(OnlineRidge(_HOURS), ratio=_PROMISE, horizon=_HOURS)
    plausible = plausible_range(weather.training)
    contract = Contract(columns=["shortage"], step_minutes=60.0, steps_per_day=_HOURS, plausible=plausible)
    site = {"site": "the built-in weather"}
    return {
        "promised": Policy(Periodic(guard, _HOURS), problem, None, site, contract),
        "r-obd": Policy(ROBD(), problem, None, site, contract),
    }
