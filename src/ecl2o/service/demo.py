"""A demonstration: a policy fitted on the built-in weather, and a year of weather replayed over HTTP."""

import contextlib
import datetime
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ecl2o.agents import ROBD, Competitive
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.data import Contexts, weather_contexts
from ecl2o.policy import Contract, Policy, save
from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
from ecl2o.running import plausible_range, stuck_limits
from ecl2o.service.client import Client
from ecl2o.service.http import Access, serve
from ecl2o.service.http.startup import bind

_HOURS = 24
_HOUR = datetime.timedelta(hours=1)
_HISTORY_DAYS = 30
_ALPHA = 10.0
_PROMISE = 2.5
_SEASONS = {"winter": 35, "spring": 110, "summer": 200, "autumn": 290}  # day of the year on which a stream starts


def run_demo(on_ready: Callable[[str], None], speed: float = 4.0, port: int = 0, steps: int | None = None) -> None:
    """Serve five streams: a policy with a daily promise in four seasons, and R-OBD in summer.

    Args:
        on_ready: Called with the URL of the page once the streams exist.
        speed: Hours of weather per second.
        port: Of the page; 0 finds a free port.
        steps: Number of steps, after which it ends. Default: a year.
    """
    weather = weather_contexts()
    contexts, clock = weather.values, weather.time.to_pydatetime()
    bound = bind("127.0.0.1", port)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"

    def replay() -> None:
        with Client(url) as client:
            first_hour = {f"site-{season}": day * _HOURS for season, day in _SEASONS.items()}
            for stream, first in first_hour.items():
                past = contexts[first - _HISTORY_DAYS * _HOURS : first].tolist()
                client.put_stream(stream, "promised", contexts[first - 1].tolist(), past)
            first_hour["summer-r-obd"] = first = first_hour["site-summer"]
            client.put_stream("summer-r-obd", "r-obd", contexts[first - 1].tolist())
            on_ready(url)
            for step in range(steps or len(contexts)):
                due = time.monotonic() + 1 / speed
                hours = {stream: (first + step) % len(contexts) for stream, first in first_hour.items()}
                times = {stream: clock[first] + step * _HOUR for stream, first in first_hour.items()}
                client.steps({stream: contexts[hour].tolist() for stream, hour in hours.items()}, times)
                time.sleep(max(due - time.monotonic(), 0.0))
        os.kill(os.getpid(), signal.SIGINT)

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        files = {}
        for name, policy in make_policies(weather).items():
            save(Path(folder) / name, policy)
            files[name] = (Path(folder) / name).read_bytes()
        client_thread = threading.Thread(target=replay, daemon=True)
        serve(f"sqlite:///{folder}/streams.db", files, bound, Access(), client_thread.start)


def make_policies(weather: Contexts) -> dict[str, Policy]:
    """Return two policies: an online regression behind a daily promise, and R-OBD."""
    problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=_ALPHA, dim=1))
    guard = Competitive(OnlineRidge(_HOURS), ratio=_PROMISE, period=_HOURS)
    screen = {"plausible": plausible_range(weather.training), "stuck_after": stuck_limits(weather.training)}
    contract = Contract(columns=["shortage"], step_minutes=60.0, steps_per_day=_HOURS, **screen)
    site = {"site": "built-in weather"}
    return {
        "promised": Policy(guard, problem, None, site, contract),
        "r-obd": Policy(ROBD(), problem, None, site, contract),
    }
