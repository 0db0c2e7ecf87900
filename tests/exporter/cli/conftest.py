"""Series of an exporter as Prometheus returns them."""

from collections.abc import Callable, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.cli.prometheus import InstantSample
from exporter.mapping.state import State
from exporter.metrics.devices import DeviceLines, SeriesLimit
from exporter.metrics.families import of_snapshot, of_stale
from runtime.exposition import Format, render

Target = Mapping[str, str]
Scrape = Callable[..., list[InstantSample]]

OWN_POD = {"namespace": "obs", "pod": "exporter-x", "container": "exporter"}


def _clashing(labels: Mapping[str, str], target: Target, *, honour: bool) -> dict[str, str]:
    """Prometheus, scrape.mutateSampleLabels: whose label wins, and what becomes of the other."""
    found = {name: value for name, value in labels.items() if value}
    for name, value in target.items():
        if honour:
            # One that is there and empty is honoured, too, and is then no label at all.
            if name not in labels:
                found[name] = value
        else:
            if found.get(name):
                found[f"exported_{name}"] = found[name]
            found[name] = value
    return found


def _scraped(
    state: State | None,
    node: str,
    now: float,
    *,
    honour: bool = True,
    target: Target | None = None,
    up: float = 1.0,
    success: float | None = None,
) -> list[InstantSample]:
    """The samples of one exporter; `state` None: its mapping is stale."""
    if state is None:
        families = of_stale(node)
    else:
        limit = SeriesLimit(100_000)
        families = of_snapshot(state, node, DeviceLines(node), limit.plan(state))
    text = render(families, Format.TEXT).text.decode()
    labels_of = {"instance": "10.0.0.1:10190", "job": "devicelens", **OWN_POD, **(target or {})}
    taken = success if success is not None else (state.taken_at if state is not None else None)
    own: list[tuple[str, dict[str, str], float]] = [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    own.append(("devicelens_up", {}, up))
    if taken is not None:
        own.append(("devicelens_last_refresh_success_timestamp_seconds", {}, taken))
    return [
        InstantSample({"__name__": name, **_clashing(labels, labels_of, honour=honour)}, (now, repr(value)))
        for name, labels, value in own
    ]


@pytest.fixture
def scrape() -> Scrape:
    """An instant query's answer of one exporter: `scrape(state, node, now, honour=…, target=…)`."""
    return _scraped
