import asyncio
import errno
import threading
import time
from collections.abc import Callable
from typing import Literal, Self

import pytest

from harness.hosttree import HostTree
from harness.nvml import (
    A100,
    A100_MIG,
    A100_UUID,
    H100,
    H100_UUID,
    SLICES,
    FakeNvml,
    divide,
    show_capability,
    show_gpu,
)
from plugin.discovery.host import HostRoot
from plugin.discovery.nvidia import Nvidia, NvidiaScanner
from plugin.discovery.nvml import NVML, NvidiaEvents
from plugin.discovery.source import Fault, Findings, Found
from plugin.discovery.sysfs_tree import SysfsTree
from plugin.serving.blocking import Offload, StuckError


def scan(here: HostRoot, kind: Literal["gpus", "slices", "both"] = "gpus") -> Findings:
    return NvidiaScanner(Nvidia(kind=kind)).scan(here)


def named(findings: Findings) -> dict[str, Found]:
    return {found.name: found for found in findings.found}


def test_gpus_by_nvml(here: HostRoot, nvml: FakeNvml) -> None:
    nvml.reports(A100, H100)
    findings = scan(here)
    assert findings.notes == ()
    assert findings.subsystems >= {"pci"}
    assert ("/dev", "nvidia*") in findings.follow
    assert list(named(findings)) == [A100_UUID, H100_UUID]
    found = named(findings)[H100_UUID]
    assert dict(found.attrs) == {
        "uuid": H100_UUID,
        "gpu_uuid": H100_UUID,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_mib": "81920",
        "mig": "disabled",
        "source": "nvml",
        "minor": "1",
        "gpu": "nvidia1",
        "address": "10000:af:00.0",
        **dict.fromkeys(("profile", "slice", "gi", "ci", "gi_minor", "ci_minor"), ""),
    }
    assert (found.path, found.nodes) == ("/dev/nvidia1", ("/dev/nvidia1",))
    assert (found.sysfs, found.claim) == ("/sys/bus/pci/devices/10000:af:00.0", "pci:10000:af:00.0")


def test_slices_by_nvml(here: HostRoot, tree: HostTree, nvml: FakeNvml) -> None:
    divide(tree)
    nvml.reports(A100_MIG, H100, *SLICES)
    found = named(scan(here, "slices"))
    assert {f.attrs["slice"]: f.attrs["profile"] for f in found.values()} == {
        "nvidia0/gi1": "3g.20gb",
        "nvidia0/gi7": "1g.5gb",
        "nvidia0/gi8": "1c.2g.10gb",
    }
    first = found["MIG-aaaaaaaa-0000-0000-0000-000000000001"]
    assert first.nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    assert (first.attrs["gi_minor"], first.attrs["ci_minor"]) == ("12", "13")
    assert (first.attrs["gpu_uuid"], first.attrs["address"]) == (A100_UUID, "0000:3b:00.0")
    assert (first.attrs["uuid"], first.absent) == (first.name, "")
    assert list(named(scan(here, "both"))) == [*found, H100_UUID]
    nvml.reports(A100_MIG, "named", SLICES[1])
    (only,) = scan(here, "slices").found
    assert only.attrs["profile"] == "1g.5gb+me"


@pytest.mark.usefixtures("no_nvml")
def test_gpus_by_the_files_of_the_driver(here: HostRoot, tree: HostTree) -> None:
    show_gpu(tree, "0000:af:00.0", 1, H100_UUID)
    show_gpu(tree, "0000:3b:00.0", 0, A100_UUID)
    show_gpu(tree, "0000:5e:00.0", 2, "GPU-x", **{"GPU Excluded": "Yes"})
    findings = scan(here)
    assert findings.notes == ("NVML is not used: libnvidia-ml.so.1 is not there",)
    assert [(f.name, f.attrs["address"], f.attrs["source"]) for f in findings.found] == [
        (A100_UUID, "0000:3b:00.0", "procfs"),
        (H100_UUID, "0000:af:00.0", "procfs"),
    ]


def test_capabilities_by_the_table(here: HostRoot, tree: HostTree, nvml: FakeNvml) -> None:
    table = "config 1\nmonitor 2\ngpu0/gi7/access 66\nx\ngpu0/gi7/ci0/access 67\n"
    tree.file("/proc/driver/nvidia-caps/mig-minors", table)
    nvml.reports(A100_MIG, SLICES[1], SLICES[0])
    unknown, known = scan(here, "slices").found
    assert known.nodes[1:] == ("/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67")
    assert unknown.absent == "nvidia0/gi1: its numbers in /dev/nvidia-caps are not known"


@pytest.mark.usefixtures("no_nvml")
def test_gpus_without_nvml_and_without_proc_are_those_with_a_node(here: HostRoot, tree: HostTree) -> None:
    assert scan(here).notes == (
        "NVML is not used: libnvidia-ml.so.1 is not there",
        "/proc/driver/nvidia/gpus and /dev/nvidia0 are not there: no driver is loaded",
    )
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia2x"):
        tree.file(f"/dev/{name}")
    found = scan(here).found
    assert [f.name for f in found] == ["nvidia0", "nvidia2", "nvidia10"]
    assert {f.attrs["source"] for f in found} == {"nodes"}
    # A GPU that was never used has no UUID.
    show_gpu(tree, "0000:3b:00.0", 0, "GPU-????????-????-????-????-????????????")
    (unused,) = scan(here).found
    assert (unused.name, unused.attrs["uuid"], unused.attrs["source"]) == ("nvidia0", "", "procfs")


@pytest.mark.usefixtures("no_nvml")
def test_a_directory_of_the_driver_that_is_there_is_not_called_missing(
    here: HostRoot, tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = "/proc/driver/nvidia/gpus"
    tree.directory(gpus)
    assert scan(here).notes[1:] == (f"{gpus} shows no GPU that the driver offers",)
    show_gpu(tree, "0000:5e:00.0", 2, "GPU-x", **{"GPU Excluded": "Yes"})
    assert scan(here).notes[1:] == (f"{gpus} shows no GPU that the driver offers",)

    def unreadable(_tree: SysfsTree, path: str) -> tuple[str, ...]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(SysfsTree, "names", unreadable)
    (note,) = scan(here).notes[1:]
    assert note == f"{gpus} cannot be read (Permission denied), and /dev/nvidia0 is not there"


@pytest.mark.usefixtures("no_nvml")
def test_slices_by_the_files_of_the_driver(here: HostRoot, tree: HostTree) -> None:
    show_gpu(tree, "0000:3b:00.0", 0, A100_UUID)
    divide(tree)
    show_capability(tree, "gi8/ci1", 77)
    tree.directory("/proc/driver/nvidia/capabilities/gpu0/mig/gix")
    found = scan(here, "slices").found
    assert [f.name for f in found] == ["nvidia0/gi1", "nvidia0/gi7", "nvidia0/gi8", "nvidia0/gi8/ci1"]
    assert found[3].nodes == (
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap75",
        "/dev/nvidia-caps/nvidia-cap77",
    )
    assert found[0].attrs["profile"] == ""
    assert found[0].attrs["gpu_uuid"] == A100_UUID
    (whole,) = scan(here).found
    assert whole.attrs["mig"] == "enabled"


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe\x00", b"Device Minor: 99999999999999999999999\n", b"Device Minor: x\n"]
)
@pytest.mark.usefixtures("no_nvml")
def test_garbage_in_the_drivers_files_is_no_gpu(here: HostRoot, tree: HostTree, text: bytes) -> None:
    tree.file("/proc/driver/nvidia/gpus/0000:3b:00.0/information", text)
    tree.file("/proc/driver/nvidia/gpus/not-an-address/information", "Device Minor: 3\n")
    show_gpu(tree, "0000:af:00.0", 1, H100_UUID)
    names = [f.name for f in scan(here).found]
    assert names[-1] == H100_UUID
    assert "nvidia3" not in names


def test_a_lost_gpu_is_absent_until_it_comes_back_or_is_removed(here: HostRoot, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    nvml.reports(A100, H100)
    source.scan(here)
    nvml.reports(A100, H100, f"lost {H100_UUID}")
    findings = source.scan(here)
    assert named(findings)[H100_UUID].absent == "GPU 1: NVML: GPU is lost"
    assert named(findings)[A100_UUID].absent == ""
    assert findings.notes == ("GPU 1: NVML: GPU is lost",)
    nvml.reports(A100, H100)
    assert named(source.scan(here))[H100_UUID].absent == ""
    assert nvml.initialised == 2
    nvml.reports(A100)
    assert list(named(source.scan(here))) == [A100_UUID]


def test_a_scan_initialises_nvml_again_if_its_driver_is_gone(here: HostRoot, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    nvml.reports(A100)
    source.scan(here)
    nvml.reports("void 2", A100, H100)
    findings = source.scan(here)
    assert list(named(findings)) == [A100_UUID, H100_UUID]
    assert (findings.notes, nvml.initialised) == ((), 2)
    nvml.reports("void 9", A100, H100)
    with pytest.raises(OSError, match="NVML: Uninitialized"):
        source.scan(here)
    nvml.reports("init 9")
    assert source.scan(here).found == ()
    NVML.reset()
    findings = source.scan(here)
    assert (findings.found, findings.notes[0]) == ((), "NVML is not used: Driver Not Loaded")
    nvml.reports(A100, H100)
    assert len(source.scan(here).found) == 2


async def test_a_call_that_hangs_times_out_and_works_later(here: HostRoot, nvml: FakeNvml) -> None:
    nvml.reports(A100)
    source, offload = NvidiaScanner(Nvidia()), Offload(1)
    await offload.run(lambda: source.scan(here), limit=10.0)
    nvml.reports("hang nvmlDeviceGetUUID", A100)
    with pytest.raises(StuckError):
        await offload.run(lambda: source.scan(here), limit=0.2)
    nvml.reports(A100, H100)
    async with asyncio.timeout(20):
        findings = None
        while findings is None:
            try:
                findings = await offload.run(lambda: source.scan(here), limit=10.0)
            except StuckError:
                await asyncio.sleep(0.01)
    assert list(named(findings)) == [A100_UUID, H100_UUID]


def test_slices_keep_their_names_without_nvml(here: HostRoot, tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia(kind="slices"))
    show_gpu(tree, "0000:3b:00.0", 0, A100_UUID)
    divide(tree)
    nvml.reports(A100_MIG, *SLICES)
    source.scan(here)
    NVML.reset()
    nvml.reports("init 18")
    with pytest.raises(OSError, match="NVML named the slices before"):
        source.scan(here)
    assert list(named(scan(here))) == [A100_UUID]


def test_a_gpu_has_its_current_nodes(here: HostRoot, tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    show_gpu(tree, "0000:3b:00.0", 0, A100_UUID)
    nvml.reports(A100)
    (found,) = source.scan(here).found
    assert source.resolve(here, found) == found
    show_gpu(tree, "0000:3b:00.0", 4, A100_UUID)
    now = source.resolve(here, found)
    assert now is not None
    assert (now.name, now.nodes) == (A100_UUID, ("/dev/nvidia4",))


def test_a_slice_has_its_current_capabilities(here: HostRoot, tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia(kind="slices"))
    show_gpu(tree, "0000:3b:00.0", 0, A100_UUID)
    divide(tree)
    nvml.reports(A100_MIG, SLICES[0])
    (found,) = source.scan(here).found
    assert source.resolve(here, found) == found
    show_capability(tree, "gi1", 30)
    now = source.resolve(here, found)
    assert now is not None
    assert now.nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap13")
    (tree.root / "proc/driver/nvidia/gpus/0000:3b:00.0/information").unlink()
    (tree.root / "dev/nvidia0").unlink()
    assert source.resolve(here, found) is None


class Listening:
    """A listener in a thread, with its faults and states."""

    def __init__(self, here: HostRoot) -> None:
        self.faults: list[Fault] = []
        self.said: list[str] = []
        self.stop = threading.Event()
        self._thread = threading.Thread(
            target=NvidiaEvents(here).listen,
            args=(self.faults.append, self.said.append, self.stop),
            daemon=True,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def wait(condition: Callable[[], bool], limit: float = 20.0) -> None:
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def test_xids_are_faults_of_the_gpu_or_of_the_slice(here: HostRoot, nvml: FakeNvml) -> None:
    nvml.reports(A100_MIG, H100, *SLICES)
    began = time.monotonic()
    with Listening(here) as listening:
        wait(lambda: listening.said == [""])
        events = (
            "event 1 1 79 - -",  # the GPU
            "event 2 0 0 - -",  # no XID at all
            "event 3 0 94 7 0",  # a slice
            "event 4 0 95 9 0",  # a slice that is not there any more
            "event 5 0 1234 - -",
        )
        nvml.reports(A100_MIG, H100, *SLICES, *events)
        wait(lambda: len(listening.faults) == 4)
    assert [(sorted(f.subjects), f.code, f.text) for f in listening.faults] == [
        ([H100_UUID], 79, "XID 79 (GPU has fallen off the bus)"),
        (["MIG-aaaaaaaa-0000-0000-0000-000000000002"], 94, "XID 94 (contained memory error)"),
        ([A100_UUID], 95, "XID 95 (uncontained memory error)"),
        ([A100_UUID], 1234, "XID 1234"),
    ]
    assert all(began <= fault.at <= time.monotonic() for fault in listening.faults)


def test_an_event_of_a_gpu_that_does_not_answer_concerns_all(here: HostRoot, nvml: FakeNvml) -> None:
    nvml.reports(A100, H100)
    with Listening(here) as listening:
        wait(lambda: listening.said == [""])
        nvml.reports(A100, H100, f"lost {H100_UUID}", "event 1 1 79 - -")
        wait(lambda: listening.faults != [])
    assert listening.faults[0].subjects == frozenset()


def test_the_reason_for_missing_events(
    here: HostRoot, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugin.discovery.nvml.RETRY", 0.02)
    monkeypatch.setattr("plugin.discovery.nvml.RENEW", 0.02)
    nvml.reports("init 9")
    with Listening(here) as listening:
        wait(lambda: listening.said != [])
        assert set(listening.said) == {"no XID events: Driver Not Loaded"}
        nvml.reports(A100.replace("NVIDIA A100-SXM4-40GB", "an old one"))
        wait(lambda: listening.said[-1] == "no XID events: GPU 0 has none")
        nvml.reports(A100)
        wait(lambda: listening.said[-1] == "")
        nvml.reports(A100, "wait 15")
        wait(lambda: listening.said[-1] == "no XID events: NVML: GPU is lost")
        before = nvml.initialised
        nvml.reports(A100, "event 1 0 48 - -")
        wait(lambda: listening.faults != [])
        assert nvml.initialised > before


def test_a_scan_initialises_nvml_again_beside_the_listener(here: HostRoot, nvml: FakeNvml) -> None:
    nvml.reports(A100, H100)
    with Listening(here) as listening:
        wait(lambda: listening.said == [""])
        nvml.reports(A100, H100, f"lost {H100_UUID}")
        scan(here)
        nvml.reports(A100, H100)
        scan(here)
        assert nvml.initialised >= 2
        nvml.reports(A100, H100, "event 1 1 48 - -")
        wait(lambda: listening.faults != [])
    assert listening.faults[0].subjects == {H100_UUID}


def test_a_configured_library_is_used_alone(here: HostRoot, tree: HostTree, nvml: FakeNvml) -> None:
    nvml.reports(A100)
    tree.file("/opt/bad.so", "no library")
    for library, note in (("none", "is not there"), ("bad", "does not load")):
        notes = NvidiaScanner(Nvidia(library=f"/opt/{library}.so")).scan(here).notes
        assert notes[0].startswith(f"NVML is not used: /opt/{library}.so {note}")
    (tree.root / "usr/lib64/libnvidia-ml.so.1").rename(tree.root / "opt/own.so")
    assert list(named(NvidiaScanner(Nvidia(library="/opt/own.so")).scan(here))) == [A100_UUID]


def test_links_count_nvlinks_and_those_through_switches(nvml: FakeNvml, here: HostRoot) -> None:
    third = A100.replace("11111111", "22222222").replace(":3B:", ":5E:")
    nvml.reports(A100, H100, third)
    assert Nvidia().links(here) == {f"pci:{a}": {} for a in ("0000:3b:00.0", "10000:af:00.0", "0000:5e:00.0")}
    switch = "00000000:C1:00.0"
    direct = (
        "link 0 00010000:AF:00.0",
        "link 0 00010000:AF:00.0",
        "link 1 00000000:3B:00.0",
        "link 1 00000000:3B:00.0",
    )
    nvml.reports(A100, H100, third, *direct, f"link 0 {switch}", *[f"link 2 {switch}"] * 3)
    links = Nvidia().links(here)
    assert links["pci:0000:3b:00.0"] == {"pci:10000:af:00.0": 80, "pci:0000:5e:00.0": 40}
    assert links["pci:10000:af:00.0"] == {"pci:0000:3b:00.0": 80}
    assert links["pci:0000:5e:00.0"] == {"pci:0000:3b:00.0": 40}


@pytest.mark.usefixtures("no_nvml")
def test_without_nvml_no_link_is_known(here: HostRoot) -> None:
    assert Nvidia().links(here) == {}
