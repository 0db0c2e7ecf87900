"""What is counted of clients: how many there are, and what became of those that were not served."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from runtime.protection.rules import Protected
from runtime.protection.validity import Validity

ENDED: Final = (
    "certificate",
    "crowded",
    "handshake",
    "head_large",
    "head_late",
    "idle_evicted",
    "plain_http",
)
"""Why a connection was ended: its client's certificate is not allowed; there was no room for it; TLS was not
agreed in time or at all; its request's head was too large, or not there in time; it was the longest idle when
room was needed; it spoke plain HTTP where TLS is spoken."""

REFUSED: Final = ("missing", "wrong", "busy", "full", "rate")
"""Why a request was refused: it had no password, or a wrong one; too many passwords of its client, or of all,
were being hashed; the rate limit."""


@dataclass(slots=True)
class Traffic:
    """Counted since the process started; `connections` are those open now."""

    connections: int = 0
    ended: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])


class WebFamilies:
    """A collector of Prometheus families, whose names begin with `prefix`."""

    def __init__(self, prefix: str, traffic: Traffic, protection: Protected | None = None) -> None:
        self._prefix = prefix
        self._traffic = traffic
        self._protection = protection

    def condition(self) -> object:
        """All that the families depend on, to be compared."""
        traffic = self._traffic
        return (
            traffic.connections,
            dict(traffic.ended),
            dict(traffic.refused),
            self._is_refused,
            self._validity,
        )

    def collect(self) -> Iterable[Metric]:
        """The families."""
        yield GaugeMetricFamily(
            f"{self._prefix}_web_connections",
            "Connections of clients that are open. [STABLE]",
            value=self._traffic.connections,
        )
        yield self._by_reason(
            "web_connections_ended",
            "Connections that were ended, and why. [STABLE]",
            ENDED,
            self._traffic.ended,
        )
        yield self._by_reason(
            "web_requests_refused",
            "Requests that were refused before they were looked at, and why. [STABLE]",
            REFUSED,
            self._traffic.refused,
        )
        yield GaugeMetricFamily(
            f"{self._prefix}_web_config_last_reload_successful",
            "0 if the web configuration was refused when it was last read and the one before stays in force, "
            "else 1. [STABLE]",
            value=int(not self._is_refused),
        )
        validity = self._validity
        yield self._moment(
            "web_certificate_not_before_timestamp_seconds",
            "From when on the certificate that is served is good, in seconds since 1970; absent without TLS; "
            "of a chain that of the one that ends first. [STABLE]",
            None if validity is None else validity.begins,
        )
        yield self._moment(
            "web_certificate_expiry_timestamp_seconds",
            "Until when the certificate that is served is good, in seconds since 1970; absent without TLS; "
            "of a chain that of the one that ends first. [STABLE]",
            None if validity is None else validity.ends,
        )

    @property
    def _validity(self) -> Validity | None:
        return None if self._protection is None else self._protection.rules.validity

    @property
    def _is_refused(self) -> bool:
        return self._protection is not None and self._protection.problem != ""

    def _moment(self, name: str, text: str, value: float | None) -> Metric:
        return GaugeMetricFamily(f"{self._prefix}_{name}", text, value=value)

    def _by_reason(self, name: str, text: str, reasons: Iterable[str], counted: Counter[str]) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=["reason"])
        for reason in reasons:
            family.add_metric([reason], counted[reason])
        return family
