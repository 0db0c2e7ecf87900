import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Self

import pytest

from harness.hosttree import HostTree
from harness.nvml import A100, A100_MIG, A100_UUID, H100, H100_UUID, FakeNvml, with_nvml, without_nvml
from plugin.discovery.host import HostRoot
from plugin.discovery.nvidia import Nvidia, NvidiaScanner
from plugin.discovery.nvml import NVML, NvidiaEvents, linux_address
from plugin.discovery.source import Fault, Findings, Found
from plugin.serving.blocking import Offload, StuckError

SLICES = (
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000001 1 0 3 3 19968",
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000002 7 0 1 1 4864",
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000003 8 0 2 1 9856",
)


@pytest.fixture
def tree(host: Path) -> HostTree:
    made = HostTree(host)
    made.directory("/dev")
    return made


@pytest.fixture
def nvml(tree: HostTree) -> Iterator[FakeNvml]:
    with with_nvml(tree) as fake:
        yield fake


@pytest.fixture
def no_nvml() -> Iterator[None]:
    with without_nvml():
        yield


def shown(tree: HostTree, address: str, minor: int, uuid: str, **more: str) -> None:
    """What the driver shows of a GPU."""
    lines = {"Model": "NVIDIA A100", "IRQ": "77", "GPU UUID": uuid, "Device Minor": str(minor), **more}
    text = "".join(f"{key}: \t {value}\n" for key, value in lines.items())
    tree.file(f"/proc/driver/nvidia/gpus/{address}/information", text)
    tree.file(f"/dev/nvidia{minor}")


def capability(tree: HostTree, minor: int, name: str, number: int) -> None:
    text = f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    tree.file(f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/{name}/access", text)


def divided(tree: HostTree) -> None:
    for gi, number in ((1, 12), (7, 66), (8, 75)):
        capability(tree, 0, f"gi{gi}", number)
        capability(tree, 0, f"gi{gi}/ci0", number + 1)


@lru_cache(maxsize=1)
def host_root(path: Path) -> HostRoot:
    """One for all looks of a test, as in a process: what is remembered is remembered of it."""
    return HostRoot(path)


def look(tree: HostTree, written: Nvidia, source: NvidiaScanner | None = None) -> Findings:
    return (source or NvidiaScanner(written)).scan(host_root(tree.root))


def named(findings: Findings) -> dict[str, Found]:
    return {found.name: found for found in findings.found}


def test_gpus_by_nvml_are_known_by_their_uuids(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells(A100, H100)
    findings = look(tree, Nvidia())
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
    assert all(f"`{name}`" in (Nvidia.__doc__ or "") for name in found.attrs)
    assert (found.path, found.nodes) == ("/dev/nvidia1", ("/dev/nvidia1",))
    assert (found.sysfs, found.claim) == ("/sys/bus/pci/devices/10000:af:00.0", "pci:10000:af:00.0")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:AF:00.0", "10000:af:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
    ],
)
def test_a_pci_address_is_written_as_linux_does(told: str, expected: str) -> None:
    assert linux_address(told) == expected


def test_slices_by_nvml_have_profiles_and_the_nodes_of_their_capabilities(
    tree: HostTree, nvml: FakeNvml
) -> None:
    divided(tree)
    nvml.tells(A100_MIG, H100, *SLICES)
    found = named(look(tree, Nvidia(kind="slices")))
    assert {f.attrs["slice"]: f.attrs["profile"] for f in found.values()} == {
        "nvidia0/gi1": "3g.20gb",
        "nvidia0/gi7": "1g.5gb",
        "nvidia0/gi8": "1c.2g.10gb",
    }
    first = found["MIG-aaaaaaaa-0000-0000-0000-000000000001"]
    assert first.nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13")
    assert (first.attrs["gi_minor"], first.attrs["ci_minor"]) == ("12", "13")
    assert (first.attrs["gpu_uuid"], first.attrs["address"]) == (A100_UUID, "0000:3b:00.0")
    assert first.attrs["uuid"] == first.name
    assert first.absent == ""
    nvml.tells(A100_MIG, "named", SLICES[1])
    (only,) = look(tree, Nvidia(kind="slices")).found
    assert only.attrs["profile"] == "1g.5gb+me"


def test_both_are_the_slices_of_divided_gpus_and_the_others_whole(tree: HostTree, nvml: FakeNvml) -> None:
    divided(tree)
    nvml.tells(A100_MIG, H100, *SLICES)
    names = list(named(look(tree, Nvidia(kind="both"))))
    assert names == [line.split()[2] for line in SLICES] + [H100_UUID]


def test_minors_of_capabilities_come_from_the_table_where_there_are_no_files(
    tree: HostTree, nvml: FakeNvml
) -> None:
    tree.file(
        "/proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi7/access 66\nx\ngpu0/gi7/ci0/access 67\n",
    )
    nvml.tells(A100_MIG, SLICES[1], SLICES[0])
    found = named(look(tree, Nvidia(kind="slices")))
    assert found["MIG-aaaaaaaa-0000-0000-0000-000000000002"].nodes[1:] == (
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    )
    unknown = found["MIG-aaaaaaaa-0000-0000-0000-000000000001"]
    assert unknown.absent == "nvidia0/gi1: its numbers in /dev/nvidia-caps are not known"


@pytest.mark.usefixtures("no_nvml")
def test_without_nvml_the_drivers_files_tell_the_same_of_gpus(tree: HostTree) -> None:
    shown(tree, "0000:af:00.0", 1, H100_UUID)
    shown(tree, "0000:3b:00.0", 0, A100_UUID)
    shown(tree, "0000:5e:00.0", 2, "GPU-x", **{"GPU Excluded": "Yes"})
    findings = look(tree, Nvidia())
    assert findings.notes == ("NVML is not used: libnvidia-ml.so.1 is not there",)
    assert [(f.name, f.attrs["address"], f.attrs["source"]) for f in findings.found] == [
        (A100_UUID, "0000:3b:00.0", "procfs"),
        (H100_UUID, "0000:af:00.0", "procfs"),
    ]


@pytest.mark.usefixtures("no_nvml")
def test_a_gpu_that_nobody_used_yet_has_no_uuid_and_is_called_by_its_node(tree: HostTree) -> None:
    shown(tree, "0000:3b:00.0", 0, "GPU-????????-????-????-????-????????????")
    (found,) = look(tree, Nvidia()).found
    assert (found.name, found.attrs["uuid"]) == ("nvidia0", "")


@pytest.mark.usefixtures("no_nvml")
def test_without_nvml_slices_are_called_by_their_instances(tree: HostTree) -> None:
    shown(tree, "0000:3b:00.0", 0, A100_UUID)
    divided(tree)
    capability(tree, 0, "gi8/ci1", 77)
    tree.directory("/proc/driver/nvidia/capabilities/gpu0/mig/gix")
    found = look(tree, Nvidia(kind="slices")).found
    assert [f.name for f in found] == ["nvidia0/gi1", "nvidia0/gi7", "nvidia0/gi8", "nvidia0/gi8/ci1"]
    assert found[3].nodes == (
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap75",
        "/dev/nvidia-caps/nvidia-cap77",
    )
    assert found[0].attrs["profile"] == ""
    assert found[0].attrs["gpu_uuid"] == A100_UUID
    (whole,) = look(tree, Nvidia()).found
    assert whole.attrs["mig"] == "enabled"


@pytest.mark.usefixtures("no_nvml")
def test_where_proc_shows_nothing_the_nodes_do(tree: HostTree) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia2x"):
        tree.file(f"/dev/{name}")
    assert [f.name for f in look(tree, Nvidia()).found] == ["nvidia0", "nvidia2", "nvidia10"]
    assert {f.attrs["source"] for f in look(tree, Nvidia()).found} == {"nodes"}


@pytest.mark.usefixtures("no_nvml")
def test_without_a_driver_there_is_nothing_and_it_is_said(tree: HostTree) -> None:
    findings = look(tree, Nvidia())
    assert findings.found == ()
    assert findings.notes == (
        "NVML is not used: libnvidia-ml.so.1 is not there",
        "/proc/driver/nvidia/gpus and /dev/nvidia0 are not there: no driver is loaded",
    )


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe\x00", b"Device Minor: 99999999999999999999999\n", b"Device Minor: x\n"]
)
@pytest.mark.usefixtures("no_nvml")
def test_garbage_in_the_drivers_files_is_no_gpu(tree: HostTree, text: bytes) -> None:
    tree.file("/proc/driver/nvidia/gpus/0000:3b:00.0/information", text)
    tree.file("/proc/driver/nvidia/gpus/not-an-address/information", "Device Minor: 3\n")
    shown(tree, "0000:af:00.0", 1, H100_UUID)
    names = [f.name for f in look(tree, Nvidia()).found]
    assert names[-1] == H100_UUID
    assert "nvidia3" not in names


def test_the_driver_appears_later_and_is_taken_up(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells("init 9")
    source = NvidiaScanner(Nvidia())
    assert look(tree, Nvidia(), source).notes[0] == "NVML is not used: Driver Not Loaded"
    nvml.tells(A100)
    assert list(named(look(tree, Nvidia(), source))) == [A100_UUID]


def test_a_driver_that_was_loaded_anew_is_begun_anew(tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    nvml.tells(A100)
    look(tree, Nvidia(), source)
    assert nvml.begun == 1
    NVML.reset()
    nvml.tells("init 9")
    assert look(tree, Nvidia(), source).found == ()
    nvml.tells(A100, H100)
    assert len(look(tree, Nvidia(), source).found) == 2
    assert nvml.begun == 2


def test_what_was_begun_with_a_driver_that_is_gone_is_begun_anew_within_one_look(
    tree: HostTree, nvml: FakeNvml
) -> None:
    source = NvidiaScanner(Nvidia())
    nvml.tells(A100)
    look(tree, Nvidia(), source)
    nvml.tells("void 2", A100, H100)
    findings = look(tree, Nvidia(), source)
    assert list(named(findings)) == [A100_UUID, H100_UUID]
    assert (findings.notes, nvml.begun) == ((), 2)
    nvml.tells("void 9", A100, H100)
    with pytest.raises(OSError, match="NVML: Uninitialized"):
        look(tree, Nvidia(), source)
    nvml.tells("init 9")
    assert look(tree, Nvidia(), source).found == ()


async def test_a_call_that_hangs_is_given_up_and_works_later(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells(A100)
    source, offload = NvidiaScanner(Nvidia()), Offload(1)
    host = host_root(tree.root)
    await offload.run(lambda: source.scan(host), limit=10.0)
    nvml.tells("hang nvmlDeviceGetUUID", A100)
    with pytest.raises(StuckError):
        await offload.run(lambda: source.scan(host), limit=0.2)
    nvml.tells(A100, H100)
    async with asyncio.timeout(20):
        findings = None
        while findings is None:
            try:
                findings = await offload.run(lambda: source.scan(host), limit=10.0)
            except StuckError:
                await asyncio.sleep(0.01)
    assert list(named(findings)) == [A100_UUID, H100_UUID]


def test_a_lost_gpu_is_absent_for_that_reason_and_comes_back(tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    nvml.tells(A100, H100)
    look(tree, Nvidia(), source)
    nvml.tells(A100, H100, f"lost {H100_UUID}")
    findings = look(tree, Nvidia(), source)
    assert named(findings)[H100_UUID].absent == "GPU 1: NVML: GPU is lost"
    assert named(findings)[A100_UUID].absent == ""
    assert findings.notes == ("GPU 1: NVML: GPU is lost",)
    nvml.tells(A100, H100)
    assert named(look(tree, Nvidia(), source))[H100_UUID].absent == ""
    assert nvml.begun == 2


def test_a_gpu_that_was_taken_out_is_not_there_any_more(tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    nvml.tells(A100, H100)
    look(tree, Nvidia(), source)
    nvml.tells(A100)
    assert list(named(look(tree, Nvidia(), source))) == [A100_UUID]


def test_slices_are_not_called_otherwise_while_nvml_is_away(tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia(kind="slices"))
    shown(tree, "0000:3b:00.0", 0, A100_UUID)
    divided(tree)
    nvml.tells(A100_MIG, *SLICES)
    look(tree, Nvidia(kind="slices"), source)
    NVML.reset()
    nvml.tells("init 18")
    with pytest.raises(OSError, match="NVML named the slices before"):
        look(tree, Nvidia(kind="slices"), source)
    assert list(named(look(tree, Nvidia()))) == [A100_UUID]


def test_what_is_allocated_has_the_nodes_of_this_moment(tree: HostTree, nvml: FakeNvml) -> None:
    source = NvidiaScanner(Nvidia())
    host = HostRoot(tree.root)
    shown(tree, "0000:3b:00.0", 0, A100_UUID)
    nvml.tells(A100)
    (found,) = source.scan(host).found
    assert source.resolve(host, found) == found
    shown(tree, "0000:3b:00.0", 4, A100_UUID)
    now = source.resolve(host, found)
    assert now is not None
    assert (now.name, now.nodes) == (A100_UUID, ("/dev/nvidia4",))


def test_a_slice_that_is_allocated_has_the_capabilities_of_this_moment(
    tree: HostTree, nvml: FakeNvml
) -> None:
    source = NvidiaScanner(Nvidia(kind="slices"))
    host = HostRoot(tree.root)
    shown(tree, "0000:3b:00.0", 0, A100_UUID)
    divided(tree)
    nvml.tells(A100_MIG, SLICES[0])
    (found,) = source.scan(host).found
    assert source.resolve(host, found) == found
    capability(tree, 0, "gi1", 30)
    now = source.resolve(host, found)
    assert now is not None
    assert now.nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap13")
    (tree.root / "proc/driver/nvidia/gpus/0000:3b:00.0/information").unlink()
    (tree.root / "dev/nvidia0").unlink()
    assert source.resolve(host, found) is None


class Listening:
    """A listener in a thread; what it told and said."""

    def __init__(self, tree: HostTree) -> None:
        self.faults: list[Fault] = []
        self.said: list[str] = []
        self.stop = threading.Event()
        self._thread = threading.Thread(
            target=NvidiaEvents(HostRoot(tree.root)).listen,
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


def test_xids_are_faults_of_the_gpu_or_of_the_slice(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells(A100_MIG, H100, *SLICES)
    with Listening(tree) as listening:
        wait(lambda: listening.said == [""])
        events = (
            "event 1 1 79 - -",  # the GPU
            "event 2 0 0 - -",  # no XID at all
            "event 3 0 94 7 0",  # a slice
            "event 4 0 95 9 0",  # a slice that is not there any more
            "event 5 0 1234 - -",
        )
        nvml.tells(A100_MIG, H100, *SLICES, *events)
        wait(lambda: len(listening.faults) == 4)
    assert [(sorted(f.subjects), f.code, f.text) for f in listening.faults] == [
        ([H100_UUID], 79, "XID 79 (GPU has fallen off the bus)"),
        (["MIG-aaaaaaaa-0000-0000-0000-000000000002"], 94, "XID 94 (contained memory error)"),
        ([A100_UUID], 95, "XID 95 (uncontained memory error)"),
        ([A100_UUID], 1234, "XID 1234"),
    ]
    assert all(abs(fault.at - time.monotonic()) < 60 for fault in listening.faults)


def test_an_event_whose_gpu_does_not_answer_is_everybodys(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells(A100, H100)
    with Listening(tree) as listening:
        wait(lambda: listening.said == [""])
        nvml.tells(A100, H100, f"lost {H100_UUID}", "event 1 1 79 - -")
        wait(lambda: listening.faults != [])
    assert listening.faults[0].subjects == frozenset()


def test_why_nothing_is_heard_is_said_and_heard_again_later(
    tree: HostTree, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugin.discovery.nvml.RETRY", 0.02)
    monkeypatch.setattr("plugin.discovery.nvml.RENEW", 0.02)
    nvml.tells("init 9")
    with Listening(tree) as listening:
        wait(lambda: listening.said != [])
        assert set(listening.said) == {"no XID events: Driver Not Loaded"}
        nvml.tells(A100.replace("NVIDIA A100-SXM4-40GB", "an old one"))
        wait(lambda: listening.said[-1] == "no XID events: GPU 0 has none")
        nvml.tells(A100)
        wait(lambda: listening.said[-1] == "")
        nvml.tells(A100, "wait 15")
        wait(lambda: listening.said[-1] == "no XID events: NVML: GPU is lost")
        before = nvml.begun
        nvml.tells(A100, "event 1 0 48 - -")
        wait(lambda: listening.faults != [])
        assert nvml.begun > before


def test_the_listener_lets_a_look_begin_nvml_anew(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells(A100, H100)
    with Listening(tree) as listening:
        wait(lambda: listening.said == [""])
        nvml.tells(A100, H100, f"lost {H100_UUID}")
        look(tree, Nvidia())
        nvml.tells(A100, H100)
        look(tree, Nvidia())
        assert nvml.begun >= 2
        nvml.tells(A100, H100, "event 1 1 48 - -")
        wait(lambda: listening.faults != [])
    assert listening.faults[0].subjects == {H100_UUID}


def test_a_library_of_ones_own_is_taken_and_no_other(tree: HostTree, nvml: FakeNvml) -> None:
    nvml.tells(A100)
    assert (
        look(tree, Nvidia(library="/opt/none.so")).notes[0] == "NVML is not used: /opt/none.so is not there"
    )
    tree.file("/opt/bad.so", "no library")
    assert "/opt/bad.so does not load" in look(tree, Nvidia(library="/opt/bad.so")).notes[0]
    (tree.root / "usr/lib64/libnvidia-ml.so.1").rename(tree.root / "opt/own.so")
    assert list(named(look(tree, Nvidia(library="/opt/own.so")))) == [A100_UUID]
