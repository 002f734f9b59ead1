"""Counters and histograms that are fast enough for every request.

When a number is added, a counter of prometheus-client takes a lock and needs four function calls,
and a histogram needs twenty. The classes of this module need one call and no lock. So only the
event loop's thread may add numbers. The metric families of prometheus-client are created when
Prometheus asks for the metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class FastCounter:
    """A counter that only the event loop's thread may change."""

    __slots__ = ("_name", "_text", "value")

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def describe(self) -> list[Metric]:
        """Return the counter's metric family; the registry calls this method at registration."""
        return self.collect()

    def collect(self) -> list[Metric]:
        from prometheus_client.core import CounterMetricFamily

        return [CounterMetricFamily(self._name, self._text, value=self.value)]


class FastHistogram:
    """A histogram that only the event loop's thread may change."""

    __slots__ = ("_bounds", "_counts", "_name", "_sum", "_text")

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text = name, text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def describe(self) -> list[Metric]:
        """Return the histogram's metric family; the registry calls this method at registration."""
        return self.collect()

    def collect(self) -> list[Metric]:
        from prometheus_client.core import HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        return [HistogramMetricFamily(self._name, self._text, buckets, self._sum)]
