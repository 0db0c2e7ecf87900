"""A resource's CDI specification on the host, over its life."""

import json
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.scripted import pod
from harness.served import Node, configuration, glob
from plugin.serving.context import Pace
from simulator import AdmissionError, SimulatedKubelet

GPU = "example.com/gpu"
FILE = "vendor.example-gpu_devicelens_example.com_gpu.json"


EDITS = [{"host": "{{ device.path }}"}, {"host": "/dev/gpuctl", "optional": True}]
BARE = configuration(glob(GPU, "/dev/gpu*"))


def specified(resource: str = GPU, more: str = "", **cdi: object) -> str:
    """A resource with a specification; `more`: other keys of the resource."""
    written = {"kind": "vendor.example/gpu", "name": "{{ device.name }}", "devices": EDITS, **cdi}
    return glob(resource, "/dev/gpu*", f"  cdi: {json.dumps(written)}\n{more}")


@pytest.fixture
def host(host: Path) -> Path:
    """As on most hosts, /var/run is a link."""
    (host / "dev").mkdir()
    (host / "run").mkdir()
    (host / "var").mkdir()
    (host / "var/run").symlink_to("/run")
    (host / "dev/gpu0").touch()
    return host


def spec(host: Path) -> dict[str, Any] | None:
    """The specification; None where there is none, also if it is just being removed."""
    path = host / "run/cdi" / FILE
    with suppress(FileNotFoundError):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert [p.name for p in path.parent.iterdir()] == [FILE]
        made: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        return made
    return None


def names(host: Path) -> list[str]:
    made = spec(host)
    return [] if made is None else [device["name"] for device in made["devices"]]


def given(kubelet: SimulatedKubelet, name: str) -> list[str]:
    return [device.name for device in kubelet.alloc_response("default", name, "c", GPU).cdi_devices]


async def test_it_follows_the_devices_and_allocate_names_them_by_it(node: Node, host: Path) -> None:
    async with node.serve(configuration(specified())) as served:
        await served.until(lambda: names(host) == ["gpu0"])
        (host / "dev/gpu1").touch()
        await served.until(lambda: names(host) == ["gpu0", "gpu1"])
        await node.allocatable(GPU, 2)
        await node.kubelet.add_pod(pod("p", GPU, 2))
        assert given(node.kubelet, "p") == ["vendor.example/gpu=gpu0", "vendor.example/gpu=gpu1"]
        made = spec(host)
        assert made is not None
        assert "containerEdits" not in made
        # A container that starts again is started by it: also after its device was seen to vanish.
        (host / "dev/gpu1").unlink()
        await node.allocatable(GPU)
        assert names(host) == ["gpu0", "gpu1"]
    assert names(host) == ["gpu0", "gpu1"]


async def test_allocate_restores_a_removed_specification(node: Node, host: Path) -> None:
    async with node.serve(configuration(specified())) as served:
        await served.until(lambda: names(host) == ["gpu0"])
        await node.allocatable(GPU)
        (host / "run/cdi" / FILE).unlink()
        (host / "dev/gpuctl").touch()
        await node.kubelet.add_pod(pod("p", GPU))
        made = spec(host)
        assert made is not None
        assert made["containerEdits"] == {"deviceNodes": [{"path": "/dev/gpuctl", "permissions": "rw"}]}


async def test_an_unchanged_one_is_not_written_again(node: Node, host: Path) -> None:
    path = host / "run/cdi" / FILE
    async with node.serve(configuration(specified())) as served:
        await served.until(lambda: names(host) == ["gpu0"])
        before = path.stat().st_ino
    async with node.serve(configuration(specified()), ready={GPU: 1}):
        await node.kubelet.add_pod(pod("p", GPU))
        assert path.stat().st_ino == before


async def test_an_unwritable_specification_blocks_the_resource(node: Node, host: Path) -> None:
    (host / "run/cdi").touch()
    async with node.serve(configuration(specified())) as served:
        await served.until(lambda: "cannot write the CDI specification" in served.status(GPU).state)
        assert not served.status(GPU).ready
        await node.allocatable(GPU)
        with pytest.raises(AdmissionError, match=f"cdi: /var/run/cdi/{FILE}: Not a directory"):
            await node.kubelet.add_pod(pod("p", GPU))
        (host / "run/cdi").unlink()
        await node.kubelet.add_pod(pod("p", GPU))
        assert names(host) == ["gpu0"]


@pytest.mark.parametrize(
    ("name", "listed", "refusal"),
    [
        (
            "{{ device.path if device.name == 'gpu1' else device.name }}",
            "gpu0",
            "rendered '/dev/gpu1', expected letters",
        ),
        ("{{ device.name[:3] }}", "gpu", "'gpu' is that of gpu0"),
    ],
    ids=["invalid", "taken"],
)
async def test_a_device_without_a_cdi_name_of_its_own_is_left_out(
    node: Node, host: Path, name: str, listed: str, refusal: str
) -> None:
    (host / "dev/gpu1").touch()
    async with node.serve(configuration(specified(name=name)), ready={GPU: 2}) as served:
        await served.until(lambda: names(host) == [listed])
        with pytest.raises(AdmissionError, match=rf"cdi\.name: {refusal}"):
            await node.kubelet.add_pod(pod("p", GPU, 2))
        assert names(host) == [listed]


def _exists(*_: object) -> str:
    return ""


async def test_a_missing_node_of_an_edit_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    # The node is gone, and the probe has not run since: the device is still healthy.
    monkeypatch.setattr("plugin.serving.probes._all_exist", _exists)
    async with node.serve(configuration(specified(devices=[{"host": "/dev/gpumem"}])), ready={GPU: 1}):
        with pytest.raises(AdmissionError, match="the host has no '/dev/gpumem'"):
            await node.kubelet.add_pod(pod("p", GPU))


async def test_another_directory_gets_it_and_the_first_one_loses_it(node: Node, host: Path) -> None:
    async with node.serve(configuration(specified())) as served:
        await served.until(lambda: names(host) == ["gpu0"])
        served.apply(configuration(specified(directory="/etc/cdi")))
        await served.until((host / "etc/cdi" / FILE).exists)
        await served.until(lambda: not (host / "run/cdi" / FILE).exists())
        served.apply(BARE)
        await served.until(lambda: not (host / "etc/cdi" / FILE).exists())


async def test_a_process_that_stands_by_leaves_it_to_the_one_that_serves(node: Node, host: Path) -> None:
    async with node.serve(configuration(specified())) as first:
        await first.until(lambda: names(host) == ["gpu0"])
        await node.allocatable(GPU)
        async with node.serve(BARE) as second:
            await second.until(lambda: "another process" in second.status(GPU).state)
            await node.kubelet.add_pod(pod("p", GPU))
            assert names(host) == ["gpu0"]
        assert names(host) == ["gpu0"]
    async with node.serve(BARE) as second:
        await second.until(lambda: spec(host) is None)


async def test_a_name_of_another_resource_is_left_out(
    node: Node, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = "example.com/later"
    second = specified(resource=later, more="  exclusive: false\n  id: 'x-{{ device.name }}'\n")
    both = configuration(specified(more="  exclusive: false\n"), second)
    (host / "dev/gpu1").touch()
    written = host / "run/cdi" / FILE.replace("com_gpu", "com_later")
    async with node.serve(both, pace=Pace(release=0.05), ready={GPU: 2, later: 2}) as served:
        await served.until(lambda: (host / "run/cdi" / FILE).exists() and not written.exists())
        with pytest.raises(AdmissionError, match=r"'vendor\.example/gpu=gpu[01]' is in the spec"):
            await node.kubelet.add_pod(pod("p", later))
        await node.kubelet.add_pod(pod("q", GPU))
        assert given(node.kubelet, "q") in (["vendor.example/gpu=gpu0"], ["vendor.example/gpu=gpu1"])
        assert "devices left out of the CDI specification" in caplog.messages
        # As soon as the first is no more, they are the other's.
        served.apply(configuration(second))
        await served.until(written.exists)
