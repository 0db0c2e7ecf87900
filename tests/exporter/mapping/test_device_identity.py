"""exporter.mapping.device_identity: what a device is, from everything that is said about it."""

import pytest

from exporter.mapping.device_identity import DeviceIdentity, identity_of, is_partition, same_physical
from exporter.mapping.dra import CdiDevice, PublishedDevice, PublishedName
from exporter.mapping.model import AdvertisedDevice, Claimed, Device, DeviceKey
from exporter.mapping.physical_ids import pci_address, pci_addresses_in, uuid

GPU = "GPU-955ef018-3bd9-5f27-80b3-fa20ee8d19c5"
OTHER = "GPU-7c1f2a90-4d3e-4b8a-9a55-0e6b8f1d2c30"
MIG = "MIG-2f8a3a0b-65d2-5a5e-9b0c-6d38f8e0c9a1"
OLD_MIG = f"MIG-{GPU}/1/0"
PCI = "0000:3b:00.0"


def _plugins(device: str, parent: str = "", resource: str = "nvidia.com/gpu") -> Device:
    return Device(DeviceKey(resource, device), parent)


def _report(**attributes: str) -> AdvertisedDevice:
    return AdvertisedDevice(True, attributes=tuple(sorted(attributes.items())))


def _claimed(
    device: str = "gpu-7", cdi: CdiDevice | None = None, published: bool = True, **facts: str
) -> Device:
    name = PublishedName("gpu.nvidia.com", "n1", device)
    found = PublishedDevice(name, **facts) if published else None  # type: ignore[arg-type]
    return Device(
        DeviceKey(name.driver, device), facts.get("parent", ""), claimed=Claimed(name, found, cdi=cdi)
    )


@pytest.mark.parametrize(
    ("device", "parent", "uuid", "address"),
    [
        (GPU, "", GPU, ""),
        (f"{GPU}::0", GPU, GPU, ""),
        (MIG, "", MIG, ""),
        (f"{MIG}::12", MIG, MIG, ""),
        (OLD_MIG, GPU, OLD_MIG, ""),
        (f"{OLD_MIG}::3", GPU, OLD_MIG, ""),
        ("0000:3B:00.0", "", "", PCI),
        (f"{PCI}::1", PCI, "", PCI),
        ("slice-1", PCI, "", PCI),
        ("slice-1", GPU, "", ""),
    ],
)
def test_an_id_may_be_an_identity(device: str, parent: str, uuid: str, address: str) -> None:
    expected = DeviceIdentity(uuid, address) if uuid or address else None
    assert identity_of(_plugins(device, parent), None) == expected
    assert identity_of(_plugins(device, parent), AdvertisedDevice(True)) == expected


@pytest.mark.parametrize(
    "device", ["nic0", "GPU-1", "card0-1", "3b:00.0", f"x{GPU}", "mlx5_0::2", "", "::1", MIG[4:]]
)
def test_another_id_is_none(device: str) -> None:
    assert identity_of(_plugins(device), None) is None


def test_what_a_plugin_reports_comes_first() -> None:
    report = _report(uuid=GPU, address="0000:3B:00.0", model="H100", driver="nvidia", serial="1")
    assert identity_of(_plugins("nvidia0"), report) == (GPU, PCI, "H100", "nvidia")
    assert identity_of(_plugins(OTHER), report) == (GPU, PCI, "H100", "nvidia")
    # A slice: its own UUID, and the address of its GPU.
    assert identity_of(_plugins(MIG), _report(uuid=MIG, gpu_uuid=GPU, address=PCI)) == (MIG, PCI, "", "")
    assert identity_of(_plugins(MIG), _report(uuid="", address=PCI)) == (MIG, PCI, "", "")
    # USB: the address is a number of its bus. Several RDMA devices together have several addresses.
    assert identity_of(_plugins("1-1"), _report(address="7", product_name="Camera")) == ("", "", "Camera", "")
    assert identity_of(_plugins("all"), _report(addresses=f"{PCI},0000:af:00.0")) is None
    # The card's name on the bus.
    assert identity_of(_plugins("card0"), _report(device_name=PCI)) == ("", PCI, "", "")
    assert identity_of(_plugins("x"), _report(uuid="", address="", driver="")) is None


def test_a_claimed_device_by_its_slice_and_its_specification() -> None:
    assert identity_of(_claimed(uuid=GPU, pci_address="00000000:3B:00.0", model="H100"), None) == (
        *(GPU, PCI, "H100", "gpu.nvidia.com"),
    )
    cdi = CdiDevice((GPU,), (PCI,))
    assert identity_of(_claimed(cdi=cdi, published=False), None) == (GPU, PCI, "", "gpu.nvidia.com")
    # The slice comes first, and the specification adds to it.
    assert identity_of(_claimed(cdi=cdi, uuid=OTHER), None) == (OTHER, PCI, "", "gpu.nvidia.com")
    assert identity_of(_claimed(published=False), None) == ("", "", "", "gpu.nvidia.com")
    # A driver's own form of a UUID is kept.
    assert identity_of(_claimed(uuid="gpu-18db0e85"), None) == ("gpu-18db0e85", "", "", "gpu.nvidia.com")


def test_a_specification_of_several_devices_tells_nothing_apart() -> None:
    several = CdiDevice((GPU, OTHER), (PCI, "0000:af:00.0"))
    assert identity_of(_claimed(cdi=several, published=False), None) == ("", "", "", "gpu.nvidia.com")


def test_a_partition_does_not_get_the_uuid_of_its_gpu() -> None:
    seen = CdiDevice((GPU,), (PCI,))
    assert identity_of(_claimed(cdi=seen, parent="gpu-0"), None) == ("", PCI, "", "gpu.nvidia.com")
    assert identity_of(_claimed(cdi=CdiDevice((MIG,)), parent="gpu-0"), None) == (
        MIG,
        "",
        "",
        "gpu.nvidia.com",
    )


def test_partitions_and_what_only_seems_to_be_one() -> None:
    def part(device: Device, report: AdvertisedDevice | None = None) -> bool:
        return is_partition(device, report, identity_of(device, report) or DeviceIdentity())

    assert part(_plugins(MIG))
    assert part(_plugins(f"{MIG}::0", MIG))
    assert part(_plugins(f"{OLD_MIG}::3", GPU))
    assert part(_plugins("nvidia0/gi1", "nvidia0"))
    assert part(_plugins("nvidia0/gi1/vgpu0", "nvidia0"))
    assert part(_plugins("amdgpu_xcp_1"), _report(partition="amdgpu_xcp_1", address=PCI))
    assert part(_plugins("part-by-a-rule-of-a-file", GPU))
    assert part(_claimed(parent="gpu-0"))
    assert not part(_plugins(GPU))
    assert not part(_plugins(f"{GPU}::0", GPU))
    assert not part(_plugins("nvidia0/vgpu1", "nvidia0"))
    assert not part(_plugins(PCI), _report(partition="", gi="", address=PCI))
    assert not part(_claimed())


def test_one_physical_device_of_both_worlds() -> None:
    shares = [_plugins(f"{GPU}::{n}", GPU) for n in range(2)]
    claimed = _claimed(uuid=GPU)
    assert same_physical([*shares, _plugins(OTHER), claimed], {}) == [(*shares, claimed)]
    by_address = _plugins("nvidia3")
    reports = {by_address.key: _report(address=PCI.upper())}
    other = _claimed("gpu-3", pci_address=PCI)
    assert same_physical([by_address, other], reports) == [(by_address, other)]
    # A UUID of one program, an address of another: a third knows both.
    knows_both = _claimed("gpu-3", uuid=GPU, pci_address=PCI)
    assert same_physical([_plugins(GPU), by_address, knows_both], reports) == [
        (_plugins(GPU), by_address, knows_both)
    ]


def test_devices_that_are_not_the_same() -> None:
    reports = {DeviceKey("nvidia.com/gpu", MIG): _report(uuid=MIG, address=PCI)}
    # A slice has its GPU's address.
    assert same_physical([_plugins(MIG), _claimed(pci_address=PCI)], reports) == []
    assert same_physical([_plugins(PCI), _claimed(pci_address=PCI, parent="gpu-0")], {}) == []
    # Of one world.
    assert same_physical([_plugins(GPU), _plugins(GPU, resource="other.example/gpu")], {}) == []
    assert same_physical([_claimed(uuid=GPU), _claimed("gpu-8", uuid=GPU)], {}) == []
    # Nothing known of either.
    assert same_physical([_plugins("x"), _claimed(), _claimed("gpu-8")], {}) == []
    # A slice by both.
    assert len(same_physical([_plugins(MIG), _claimed(uuid=MIG, parent="gpu-0")], {})) == 1


def test_forms_of_the_kernel_and_of_nvml() -> None:
    assert pci_address("00000000:1B:00.0") == "0000:1b:00.0"
    assert pci_address("10000:e1:00.0") == "10000:e1:00.0"
    assert [
        pci_address(one) for one in ("3b:00.0", "0000:3b:00.8", "0000:3b:20.0", "0000:3b:00.0\n", "")
    ] == [""] * 5
    assert pci_addresses_in("x" * 5000 + PCI) == ()
    assert uuid(GPU[4:].upper()) == GPU[4:]
    assert uuid("GPU-DEADBEEFDEADBEEF") == "GPU-deadbeefdeadbeef"
    assert uuid("deadbeefdeadbeef") == ""
