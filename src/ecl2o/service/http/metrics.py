"""What Prometheus reads."""

import collections
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ecl2o.service.refused import Refused
from ecl2o.service.service import Service
from ecl2o.service.step_executor import Answer

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Measures:
    """Counters of this process, and what the store says of all streams."""

    def __init__(self, service: Service):
        self._registry = CollectorRegistry()
        self._steps = Counter("ecl2o_steps", "Steps played", ["policy"], registry=self._registry)
        self._guarded = Counter(
            "ecl2o_guard_active_steps",
            "Steps in which the guard changed the action",
            ["policy"],
            registry=self._registry,
        )
        self._screened = Counter(
            "ecl2o_screened_steps",
            "Steps whose context was missing or implausible, so that another one stood in",
            ["policy"],
            registry=self._registry,
        )
        self._unconverged = Counter(
            "ecl2o_unconverged_steps",
            "Steps in which a solve did not converge, or a promise held no longer",
            ["policy"],
            registry=self._registry,
        )
        self._refusals = Counter("ecl2o_refusals", "Requests or steps refused", ["status"], registry=self._registry)
        self.latency = Histogram(
            "ecl2o_step_seconds", "From a request for steps to its answer", buckets=_SECONDS, registry=self._registry
        )
        self._registry.register(_Standing(service))

    def count(self, answers: list[Answer]) -> None:
        """Fresh answers."""
        for policy, number in collections.Counter(answer.policy for answer in answers).items():
            self._steps.labels(policy).inc(number)
        for policy, number in collections.Counter(answer.policy for answer in answers if answer.active).items():
            self._guarded.labels(policy).inc(number)
        for policy, number in collections.Counter(answer.policy for answer in answers if answer.screened).items():
            self._screened.labels(policy).inc(number)
        for policy, number in collections.Counter(answer.policy for answer in answers if answer.unconverged).items():
            self._unconverged.labels(policy).inc(number)

    def refused(self, status: int) -> None:
        """A refusal."""
        self._refusals.labels(str(status)).inc()

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self._registry)


class _Standing(Collector):
    """Figures by policy, read from the store when they are asked for."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterable[Metric]:
        reasons = self._service.unready()
        ready = GaugeMetricFamily("ecl2o_ready", "1 if the service may be asked")
        ready.add_metric([], 0.0 if reasons else 1.0)
        yield ready
        try:
            standing = self._service.standing()
        except Refused:
            return
        named = {
            "streams": ("ecl2o_streams", "Streams in the store"),
            "live_ratio": ("ecl2o_live_ratio_max", "The highest live ratio of a policy's streams"),
            "left": ("ecl2o_promise_left_min", "The least that a promise leaves to be spent, in units of cost"),
            "promise": ("ecl2o_promise_ratio", "The promised ratio"),
        }
        for field, (name, words) in named.items():
            family = GaugeMetricFamily(name, words, labels=["policy"])
            for policy in standing:
                value = policy[field]["ratio"] if field == "promise" and policy[field] else policy[field]
                if value is not None:
                    family.add_metric([policy["policy"]], float(value))
            yield family

    def describe(self) -> Iterable[Metric]:
        return []
