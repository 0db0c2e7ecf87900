"""exporter.mapping.model: merging the reports of several plugins."""

from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    DeviceKey,
    PluginReport,
    merge_reports,
)

A, B = AdvertisedDevice(healthy=True), AdvertisedDevice(healthy=False, reason="dust")


def report(
    source: str,
    devices: dict[str, AdvertisedDevice],
    *,
    registered: bool = True,
    streams: int = 1,
    received_at: float | None = 100.0,
    problem: str = "",
) -> PluginReport:
    resource = AdvertisedResource(registered, streams, devices)
    return PluginReport(source, {"r": resource}, received_at, problem)


def test_nobody_says_nothing() -> None:
    found = merge_reports([])
    assert (found.devices, found.resources, found.reports) == ({}, {}, ())
    assert not found.answers("r")
    assert not found.serves("r")


def test_plugins_of_several_resources_add_up() -> None:
    one = PluginReport("one", {"a": AdvertisedResource(registered=True, streams=1, devices={"x": A})}, 1.0)
    two = PluginReport("two", {"b": AdvertisedResource(registered=False, streams=0, devices={"x": B})}, 2.0)
    found = merge_reports([one, two])
    assert found.devices == {DeviceKey("a", "x"): A, DeviceKey("b", "x"): B}
    assert found.serves("a")
    assert found.answers("b")
    assert not found.serves("b")


def test_of_two_that_tell_of_one_resource_the_one_counts_that_the_kubelet_follows() -> None:
    leaving = report("leaving", {"x": A}, streams=0)
    standing_by = report("standing by", {"x": B}, registered=False, streams=0)
    taking_over = report("taking over", {"y": B})
    gone = report("gone", {"z": A}, problem="connection refused")
    for reports in ([leaving, standing_by, taking_over, gone], [gone, taking_over, standing_by, leaving]):
        found = merge_reports(reports)
        assert found.devices == {DeviceKey("r", "y"): B}
        assert found.resources["r"].report is taking_over
        assert found.reports == tuple(reports)


def test_among_equals_the_first_counts() -> None:
    assert merge_reports([report("one", {"x": A}), report("two", {"x": B})]).devices == {
        DeviceKey("r", "x"): A
    }


def test_a_plugin_that_answers_no_more_is_not_asked_whether_it_serves() -> None:
    found = merge_reports([report("gone", {"x": A}, problem="connection refused")])
    assert found.devices == {DeviceKey("r", "x"): A}
    assert not found.answers("r")
    assert not found.serves("r")
