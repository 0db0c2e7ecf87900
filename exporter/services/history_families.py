"""What Prometheus gets of history itself."""

from collections.abc import Callable, Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from exporter.history.archive import Condition


class HistoryFamilies:
    """A collector: how history is, at the moment of the scrape."""

    def __init__(self, condition: Callable[[], Condition]) -> None:
        self._condition = condition

    def collect(self) -> Iterable[Metric]:
        """The families."""
        now = self._condition()
        yield GaugeMetricFamily(
            "devicelens_history_up",
            "Whether history is written where it should be; 0 if its file cannot be used or written. "
            "[STABLE]",
            value=int(now.written),
        )
        yield GaugeMetricFamily(
            "devicelens_history_holdings",
            "Holdings that history has, those that last and those of the past. [STABLE]",
            value=now.rows,
        )
        yield GaugeMetricFamily(
            "devicelens_history_pending_holdings",
            "Changes of holdings that wait to be written. [STABLE]",
            value=now.pending,
        )
        yield GaugeMetricFamily(
            "devicelens_history_size_bytes",
            "What history takes of its file, or of memory, in bytes. [STABLE]",
            value=now.size,
        )
        if now.earliest is not None:
            yield GaugeMetricFamily(
                "devicelens_history_earliest_timestamp_seconds",
                "Since when history knows who held what, in unix time. [STABLE]",
                value=now.earliest,
            )
        yield CounterMetricFamily(
            "devicelens_history_errors_total",
            "Attempts to use or to write history's file that failed. [STABLE]",
            value=now.errors,
        )
        yield CounterMetricFamily(
            "devicelens_history_dropped_holdings_total",
            "Holdings that were forgotten because too many waited to be written. [STABLE]",
            value=now.dropped,
        )
        yield CounterMetricFamily(
            "devicelens_history_expired_holdings_total",
            "Holdings that were deleted for their age, or to keep history within its size. [STABLE]",
            value=now.expired,
        )
