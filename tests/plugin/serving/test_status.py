"""The log events of a resource's devices."""

import pytest

from plugin.devices.inventory import HealthTransition
from plugin.serving.status import MAX_NAMED, ResourceLog

BROKEN = "found '1', expected '0'"


def test_a_new_unhealthy_device_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "devicelens")
    ResourceLog("a.b/c").transitions(
        [
            HealthTransition("d9", healthy=False, reason=BROKEN, new=True),
            HealthTransition("d10", healthy=True, reason="", new=True),
            HealthTransition("d1", healthy=True, reason=""),
            HealthTransition("d2", healthy=False, reason=BROKEN),
        ]
    )
    assert [(record.getMessage(), vars(record)["devicelens_fields"]) for record in caplog.records] == [
        ("devices found", {"resource": "a.b/c", "devices": "d9, d10"}),
        ("device unhealthy", {"resource": "a.b/c", "device": "d9", "reason": BROKEN}),
        ("device healthy", {"resource": "a.b/c", "device": "d1"}),
        ("device unhealthy", {"resource": "a.b/c", "device": "d2", "reason": BROKEN}),
    ]


def test_of_many_devices_some_are_named_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "devicelens")
    many = [HealthTransition(f"d{n}", healthy=False, reason=BROKEN, new=True) for n in range(MAX_NAMED + 3)]
    ResourceLog("a.b/c").transitions(many)
    events = [(record.getMessage(), vars(record)["devicelens_fields"]) for record in caplog.records]
    assert events[0][1]["devices"] == "d0, d1, d2, d3, d4, d5, d6, d7 and 3 more"
    assert [event for event, _ in events].count("device unhealthy") == MAX_NAMED
    assert events[-1] == ("more devices changed health", {"resource": "a.b/c", "count": 3})
