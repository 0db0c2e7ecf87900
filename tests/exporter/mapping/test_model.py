"""exporter.mapping.model: merging the reports of several plugins."""

from typing import Any

import pytest

from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    DeviceKey,
    PluginReport,
    merge_reports,
)
from harness.scene import reported

A, B = AdvertisedDevice(healthy=True), AdvertisedDevice(healthy=False, reason="dust")


def report(source: str, device: str, advertised: AdvertisedDevice = A, **changes: Any) -> PluginReport:
    (found,) = reported({device: advertised}, resource="r", source=source, **changes).reports
    return found


def test_plugins_of_several_resources_add_up() -> None:
    one = PluginReport("one", {"a": AdvertisedResource(registered=True, streams=1, devices={"x": A})}, 1.0)
    two = PluginReport("two", {"b": AdvertisedResource(registered=False, streams=0, devices={"x": B})}, 2.0)
    found = merge_reports([one, two])
    assert found.devices == {DeviceKey("a", "x"): A, DeviceKey("b", "x"): B}
    assert found.serves("a")
    assert found.answers("b")
    assert not found.serves("b")


def test_report_that_the_kubelet_watches_wins_and_among_equals_the_first() -> None:
    leaving = report("leaving", "x", streams=0)
    standing_by = report("standing by", "x", B, registered=False, streams=0)
    taking_over = report("taking over", "y", B)
    gone = report("gone", "z", problem="connection refused")
    for reports in ([leaving, standing_by, taking_over, gone], [gone, taking_over, standing_by, leaving]):
        found = merge_reports(reports)
        assert found.devices == {DeviceKey("r", "y"): B}
        assert found.resources["r"].report is taking_over
        assert found.reports == tuple(reports)
    equal = merge_reports([report("one", "x", A), report("two", "x", B)])
    assert equal.devices == {DeviceKey("r", "x"): A}


@pytest.mark.parametrize("reports", [[], [report("gone", "x", problem="connection refused")]])
def test_silent_plugin_serves_nothing(reports: list[PluginReport]) -> None:
    found = merge_reports(reports)
    assert len(found.devices) == len(reports)
    assert not found.answers("r")
    assert not found.serves("r")
