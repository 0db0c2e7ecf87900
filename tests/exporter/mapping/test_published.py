"""exporter.mapping.published: what an entry of a slice says about its device."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from exporter.mapping.dra import Consumption, PublishedDevice, PublishedName, Taint
from exporter.mapping.published import NAME_LIMIT, TEXT_LIMIT, ResourceSlice, SliceContent, content_of
from harness.recordings import RECORDINGS

UUID = "gpu-18a3e86f-4c0e-cd9f-59c3-55488c4b0c24"


def read(*devices: dict[str, Any], **spec: Any) -> SliceContent | None:
    found = {
        "metadata": {"name": "slice"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "node",
            "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
            "devices": list(devices),
        }
        | spec,
    }
    return content_of(msgspec.convert(found, ResourceSlice))


def devices_of(content: SliceContent | None) -> Mapping[PublishedName, PublishedDevice]:
    assert content is not None
    return content.devices


def one(**facts: Any) -> PublishedDevice:
    (device,) = devices_of(read({"name": "gpu-0", **facts})).values()
    return device


def with_attributes(**attributes: dict[str, Any]) -> PublishedDevice:
    return one(attributes={name.replace("__", "/"): value for name, value in attributes.items()})


def test_facts_of_a_device() -> None:
    device = one(
        attributes={
            "uuid": {"string": "GPU-18A3E86F-4c0e-cd9f-59c3-55488c4b0c24"},
            "productName": {"string": "Example 9000"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:3B:00.0"},
            "numa": {"int": 1},
            "index": {"int": 4},
            "ecc": {"bool": True},
            "driverVersion": {"version": "1.2.3"},
            "devicelens.dev/resource": {"string": "example.com/gpu"},
        },
        capacity={"memory": {"value": "40Gi", "requestPolicy": {"default": "1Gi"}}},
        taints=[
            {"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-11-22T07:15:40Z"},
            {"key": "l", "effect": "NoSchedule"},
        ],
        allowMultipleAllocations=True,
    )
    assert device == PublishedDevice(
        PublishedName("gpu.example.com", "node", "gpu-0"),
        resource="example.com/gpu",
        uuid="GPU-18a3e86f-4c0e-cd9f-59c3-55488c4b0c24",
        pci_address="0000:3b:00.0",
        model="Example 9000",
        numa_nodes=(1,),
        attributes=(
            ("devicelens.dev/resource", "example.com/gpu"),
            ("driverVersion", "1.2.3"),
            ("ecc", "true"),
            ("index", "4"),
            ("numa", "1"),
            ("productName", "Example 9000"),
            ("resource.kubernetes.io/pciBusID", "0000:3B:00.0"),
            ("uuid", "GPU-18A3E86F-4c0e-cd9f-59c3-55488c4b0c24"),
        ),
        capacity=(("memory", "40Gi"),),
        taints=(Taint("k", "v", "NoExecute", 1795331740.0), Taint("l", "", "NoSchedule")),
        shareable=True,
    )


@pytest.mark.parametrize(
    "name",
    [
        "resource.kubernetes.io/pciBusID",
        "pcieBusID",
        "pciAddress",
        "pci-address",
        "PCI_ADDRESS",
        "pciAddr",
        "sriovnetwork.k8snetworkplumbingwg.io/pciAddress",
    ],
)
def test_the_pci_address_has_many_names(name: str) -> None:
    assert one(attributes={name: {"string": "00000000:3B:00.0"}}).pci_address == "0000:3b:00.0"


@pytest.mark.parametrize("name", ["pfPciAddress", "pciRoot", "resource.kubernetes.io/pcieRoot", "pciId"])
def test_the_address_of_another_function_is_none_of_the_device(name: str) -> None:
    assert one(attributes={name: {"string": "0000:3b:00.0"}}).pci_address == ""


def test_the_standard_attribute_comes_first_then_the_drivers() -> None:
    def numa(*names: str) -> tuple[int, ...]:
        return one(attributes={name: {"int": node} for node, name in enumerate(names)}).numa_nodes

    assert numa("numaNode", "resource.kubernetes.io/numaNode", "dra.net/numaNode") == (1,)
    assert numa("dra.net/numaNode", "gpu.example.com/numaNode") == (1,)
    assert numa("dra.net/numaNode") == (0,)


@pytest.mark.parametrize(
    ("value", "nodes"),
    [({"int": -1}, ()), ({"ints": [1, 0, 1]}, (0, 1)), ({"string": "0"}, ()), ({"int": 1 << 40}, ())],
)
def test_numa_nodes(value: dict[str, Any], nodes: tuple[int, ...]) -> None:
    assert with_attributes(numaNode=value).numa_nodes == nodes


def test_what_is_no_address_and_no_resource_is_left_out() -> None:
    device = with_attributes(
        pciAddress={"string": "bus 3"},
        devicelens__x={"string": "y"},
        uuid={"string": "a\nb"},
    )
    assert (device.pci_address, device.uuid, device.resource) == ("", "", "")


@pytest.mark.parametrize(
    ("name", "resource"), [("example.com/gpu", "example.com/gpu"), ("b.example.com", "")]
)
def test_the_resource_is_never_a_drivers_name(name: str, resource: str) -> None:
    attributes = {"devicelens.dev/resource": {"string": name}}
    assert with_attributes(**attributes).resource == resource


@pytest.mark.parametrize(
    ("time", "since"),
    [
        ("2026-11-23T00:00:00Z", 1_795_392_000.0),
        ("0000-01-01T00:00:00Z", None),
        ("2026-11-23T00:00:00", None),
        ('"', None),
        (None, None),
    ],
)
def test_time_of_a_taint_that_is_none_keeps_the_taint(time: str | None, since: float | None) -> None:
    """Kubernetes takes the year 0, of which Python knows no time."""
    (taint,) = one(taints=[{"key": "k", "effect": "NoSchedule", "timeAdded": time}]).taints
    assert (taint.key, taint.since) == ("k", since)


def test_a_vendors_own_uuid_stays_as_it_is() -> None:
    assert with_attributes(uuid={"string": "0x7b8c"}).uuid == "0x7b8c"
    assert with_attributes(uuid={"string": UUID}).uuid == UUID


def test_text_is_cut_and_counts_are_bounded() -> None:
    device = one(
        attributes={f"{n:03}{'a' * 500}": {"string": "b" * 5000} for n in range(200)},
        taints=[{"key": "k" * 5000, "effect": "NoSchedule"}] * 200,
    )
    assert len(device.attributes) == len(device.taints) == 64
    assert {len(text) for pair in device.attributes for text in pair} == {TEXT_LIMIT}
    assert len(device.taints[0].key) == TEXT_LIMIT
    assert len(with_attributes(model={"string": "m" * 5000}).model) <= NAME_LIMIT


@pytest.mark.parametrize("name", ["", "x" * 254, "a\x1b[2Jb", "caf\u00e9"])
def test_a_device_with_a_strange_name_is_left_out(name: str) -> None:
    assert not devices_of(read({"name": name}))
    assert read(driver=name) is None


def test_consumed_counters() -> None:
    taken = {
        "counterSet": "gpu-0-set",
        "counters": {"memory": {"value": "10Gi"}, "engines": {"value": "500m"}},
    }
    device = one(consumesCounters=[taken], attributes={"parentUUID": {"string": UUID}})
    assert device.consumes == (
        Consumption("gpu-0-set", "engines", 0.5),
        Consumption("gpu-0-set", "memory", 10 * 2.0**30),
    )
    assert device.parent == ""
    for amount in ("much", "-1"):
        bad = {"counterSet": "s", "counters": {"memory": {"value": amount}}}
        assert not devices_of(read({"name": "gpu-0", "consumesCounters": [bad]}))
    sets = [{"name": "gpu-0-set", "counters": {"memory": {"value": "40Gi"}, "bad": {"value": "x"}}}]
    content = read(sharedCounters=sets)
    assert content is not None
    assert content.counters == {("gpu-0-set", "memory"): 40 * 2.0**30}


def test_a_slice_of_a_gpu_names_its_gpu() -> None:
    assert with_attributes(parentUUID={"string": UUID}).parent == UUID


def test_v1beta1_has_the_facts_under_basic() -> None:
    device = one(basic={"attributes": {"uuid": {"string": UUID}}, "capacity": {"memory": {"value": "1Gi"}}})
    assert (device.uuid, device.capacity) == (UUID, (("memory", "1Gi"),))


def test_recorded_slice() -> None:
    name = "dra-extended-resource-admin-access-and-health.resourceslices.json"
    (found,) = msgspec.json.decode((RECORDINGS / name).read_bytes(), type=list[ResourceSlice])
    content = content_of(found)
    assert content is not None
    assert [name.device for name in content.devices] == [f"device-0{n}" for n in range(6)]
    assert content.generation == content.size == 1
