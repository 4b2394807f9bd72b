"""The metrics that Prometheus reads."""

import collections
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ecl2o.exceptions import ServiceError
from ecl2o.service.models import PolicyUsage, StepRecord, StepResult
from ecl2o.service.service import Service

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)  # seconds

# Counters of steps by policy: name, help, and which steps count.
_COUNTERS: tuple[tuple[str, str, Callable[[StepRecord], bool | None]], ...] = (
    ("steps", "Steps executed", lambda step: True),
    ("guard_active_steps", "Steps in which the guard changed the action", lambda step: step.guard_active),
    ("screened_steps", "Steps whose context was missing or implausible and replaced", lambda step: step.screened),
    ("stuck_steps", "Steps with a reading that has not changed for implausibly long", lambda step: bool(step.stuck)),
    ("unconverged_steps", "Steps without a guarantee", lambda step: step.unconverged),
)

# Gauges by policy, read from the store: name, help, and value.
_GAUGES: tuple[tuple[str, str, Callable[[PolicyUsage], float | None]], ...] = (
    ("streams", "Streams in the store", lambda usage: usage.streams),
    ("live_ratio_max", "Highest live ratio of the streams", lambda usage: usage.live_ratio_max),
    ("promise_left_min", "Least cost that a promise of a stream still allows", lambda usage: usage.promise_left_min),
    ("promise_spent_max", "Largest spent share of a promise of a stream", lambda usage: usage.promise_spent_max),
    (
        "promise_ratio",
        "Promised ratio; of several promises, the first",
        lambda usage: None if usage.promise is None else usage.promise.ratio,
    ),
)


class Metrics:
    """Counters of this process, and gauges of all streams in the store."""

    def __init__(self, service: Service):
        self._registry = registry = CollectorRegistry()
        self._counters = [
            (Counter(f"ecl2o_{name}", text, ["policy"], registry=registry), counts) for name, text, counts in _COUNTERS
        ]
        self._errors = Counter(
            "ecl2o_refusals", "Requests or steps answered with an error", ["status"], registry=registry
        )
        self.latency = Histogram(
            "ecl2o_step_seconds", "From a request for steps to its answer", buckets=_BUCKETS, registry=registry
        )
        registry.register(_StoreCollector(service))

    def count_steps(self, results: list[StepResult]) -> None:
        """Count the steps that this service executed; others have no record."""
        steps = [(result.policy, result.record) for result in results if result.record is not None]
        for counter, counts in self._counters:
            for policy, number in collections.Counter(policy for policy, step in steps if counts(step)).items():
                counter.labels(policy).inc(number)

    def count_error(self, status: int) -> None:
        """Count an answer with an error status."""
        self._errors.labels(str(status)).inc()

    def render(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        return generate_latest(self._registry)


class _StoreCollector(Collector):
    """Read the gauges from the store on each scrape."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily("ecl2o_ready", "1 if the service is ready")
        ready.add_metric([], 0.0 if self._service.list_failures() else 1.0)
        yield ready
        try:
            usages = self._service.summarize_policies()
        except ServiceError:
            return
        for name, text, value_of in _GAUGES:
            family = GaugeMetricFamily(f"ecl2o_{name}", text, labels=["policy"])
            for usage in usages:
                value = value_of(usage)
                if value is not None:
                    family.add_metric([usage.policy], float(value))
            yield family

    def describe(self) -> Iterable[Metric]:
        return []
