"""exporter.plugins.client: a plugin's document, as it is written and as it should not be."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.model import AdvertisedDevice
from exporter.plugins.client import DocumentError, parse
from plugin.devices.device import Device, Sharing
from plugin.devices.inventory import Inventory, ObservedDevice
from plugin.serving.status import ResourceCounters, ResourceStatus
from plugin.serving.web import document
from runtime.clock import Instant


def _parsed(**device: Any) -> AdvertisedDevice:
    text = {"version": 1, "resources": [{"name": "r", "devices": [{"id": "d", **device}]}]}
    return parse(json.dumps(text).encode())["r"].devices["d"]


def test_what_the_plugin_writes_is_read() -> None:
    """The two processes never import each other: this is where their two ends meet."""
    inventory = Inventory(Sharing(2))
    well = Device("gpu0", "gpu0", "/dev/gpu0", {"model": "A100"}, (0, 1))
    ill = Device("gpu1", "gpu1")
    inventory.survey([ObservedDevice(well), ObservedDevice(ill, "its node is gone")], Instant(1000.25, 1.0))
    inventory.name(["gpu0::1", "gpu1::1"], Instant(1010.5, 11.0))
    inventory.give(["gpu0::1"], Instant(1010.5, 11.0))
    status = ResourceStatus(
        name="example.com/gpu",
        registered=True,
        streams=1,
        ready=True,
        state="",
        advertised=inventory.advertised(),
        last_allocated=inventory.last_given,
        counters=ResourceCounters(),
    )
    read = parse(msgspec.json.encode(document((status,))))
    resource = read["example.com/gpu"]
    assert (resource.registered, resource.streams, resource.served) == (True, 1, True)
    assert list(resource.devices) == ["gpu0::0", "gpu0::1", "gpu1::0", "gpu1::1"]
    assert resource.devices["gpu0::1"] == AdvertisedDevice(
        healthy=True,
        reason="",
        since=1000.25,
        numa_nodes=(0, 1),
        attributes=(("model", "A100"), ("parent", "gpu0"), ("path", "/dev/gpu0")),
        last_allocated=1010.5,
        parent="gpu0",
    )
    assert resource.devices["gpu1::0"].reason == "its node is gone"
    assert not resource.devices["gpu1::0"].healthy
    assert resource.devices["gpu0::0"].last_allocated is None
    assert resource.devices["gpu1::1"].last_allocated is None, "it was asked for, and refused"


def test_what_may_be_missing_is_missed_and_what_is_more_is_ignored() -> None:
    text = (
        b'{"version":1,"new":[],"resources":[{"name":"r","x":1,"devices":[{"id":"d","y":{}}]},{"name":"s"}]}'
    )
    read = parse(text)
    assert read["r"].devices == {"d": AdvertisedDevice(healthy=False, reason="its health is ''")}
    assert (read["s"].registered, read["s"].streams, read["s"].devices) == (False, 0, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"version":2,"resources":[{"id":"other"}]}', "found version 2, expected 1"),
        (b'{"resources":[]}', "expected the devices of a devicelens plugin: Object missing required field"),
        (b'{"version":1}', "missing required field `resources`"),
        (b'{"version":1,"resources":[{"name":1}]}', "Expected `str`, got `int` - at `$.resources[0].name`"),
        (
            b'{"version":1,"resources":[{"name":"r","devices":[{"id":"d","numa_nodes":null}]}]}',
            "Expected `array`, got `null`",
        ),
        (b"<html>", "expected the devices of a devicelens plugin: "),
        (b"", "expected the devices of a devicelens plugin: "),
        (b"\xff\xfe", "expected the devices of a devicelens plugin: "),
        (b"[" * 100_000, "expected the devices of a devicelens plugin: "),
        (b'{"version":1,"resources":' + b"[" * 100_000, "expected the devices of a devicelens plugin: "),
    ],
)
def test_what_is_no_document_is_refused_in_words(text: bytes, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-10-28T22:41:03.250Z", 1_793_227_263.25),
        ("2026-10-28T23:41:03.250+01:00", 1_793_227_263.25),
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-10-28T22:41:03", None),
        ("1969-12-31T23:59:59Z", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("2" * 10_000, None),
    ],
)
def test_a_time_is_one_that_can_be_shown_or_none(text: str | None, at: float | None) -> None:
    found = _parsed(health="Healthy", since=text, last_allocated=text)
    assert (found.since, found.last_allocated) == (at, at)


def test_health_is_what_the_kubelet_would_make_of_it() -> None:
    assert _parsed(health="Healthy") == AdvertisedDevice(healthy=True)
    assert _parsed(health="Unhealthy", reason="dust") == AdvertisedDevice(healthy=False, reason="dust")
    assert _parsed(health="Unhealthy") == AdvertisedDevice(healthy=False)
    assert _parsed(health="healthy").reason == "its health is 'healthy'"


def test_everything_is_bounded() -> None:
    found = _parsed(
        health="Unhealthy",
        reason="x" * 5000,
        numa_nodes=[1, -1, 0, 1, *range(5000)],
        attributes={f"a{n:04}": "y" * 5000 for n in range(500)},
    )
    assert len(found.reason) == 1024
    assert found.reason.endswith("…")
    assert len(found.numa_nodes) <= 1024
    assert min(found.numa_nodes) == 0
    assert len(found.attributes) == 64
    assert all(len(value) == 1024 for _, value in found.attributes)


def test_too_many_devices_are_refused() -> None:
    devices = ",".join(f'{{"id":"{n}"}}' for n in range(100_001))
    with pytest.raises(DocumentError, match="found 100001 devices, expected at most 100000"):
        parse(f'{{"version":1,"resources":[{{"name":"r","devices":[{devices}]}}]}}'.encode())


def test_a_device_is_not_its_own_parent() -> None:
    assert _parsed(attributes={"parent": "d"}).parent == ""
    assert _parsed(attributes={"parent": "p"}).parent == "p"
    assert _parsed(attributes={"parent": "p" * 5000}).parent == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["version", "resources", "name", "devices", "id", "health", "numa_nodes", "since"]
            )
            | st.text(max_size=3),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(JSON | st.fixed_dictionaries({"version": st.just(1), "resources": JSON}))
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        parse(json.dumps(value).encode())
    except DocumentError:
        return


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with pytest.raises(DocumentError):
        parse(body)
