"""Directories of pods, named and ordered as a kubelet's cgroups."""

from pathlib import Path

import pytest

from simulator import SimulatedKubelet
from simulator.cgroups import Driver
from simulator.model import AdmissionError, ContainerSpec, PodSpec

UID = "c067e6ef-8a8a-4102-970c-bfed0f965251"

SYSTEMD = {
    "Guaranteed": "kubepods.slice/kubepods-podc067e6ef_8a8a_4102_970c_bfed0f965251.slice",
    "Burstable": "kubepods.slice/kubepods-burstable.slice"
    "/kubepods-burstable-podc067e6ef_8a8a_4102_970c_bfed0f965251.slice",
    "BestEffort": "kubepods.slice/kubepods-besteffort.slice"
    "/kubepods-besteffort-podc067e6ef_8a8a_4102_970c_bfed0f965251.slice",
}
CGROUPFS = {
    "Guaranteed": f"kubepods/pod{UID}",
    "Burstable": f"kubepods/burstable/pod{UID}",
    "BestEffort": f"kubepods/besteffort/pod{UID}",
}


def cgroups(root: Path) -> set[str]:
    """The directories of pods."""
    top = root / "cgroup"
    return {str(path.relative_to(top)) for path in top.rglob("*pod*") if UID[:8] in path.name}


@pytest.mark.parametrize(("driver", "paths"), [("systemd", SYSTEMD), ("cgroupfs", CGROUPFS)])
async def test_a_pod_has_a_cgroup_named_by_driver_and_class_while_it_runs(
    driver: Driver, paths: dict[str, str], root: Path
) -> None:
    async with SimulatedKubelet(root, cgroup_driver=driver) as kubelet:
        for qos, path in paths.items():
            await kubelet.add_pod(PodSpec("deleted", uid=UID, qos_class=qos))
            assert cgroups(root) == {path}
            await kubelet.delete_pod("default", "deleted")
            assert cgroups(root) == set()
        await kubelet.add_pod(PodSpec("completed", uid=UID))
        await kubelet.complete_pod("default", "completed")
        assert cgroups(root) == set()
        with pytest.raises(AdmissionError):
            await kubelet.add_pod(PodSpec("refused", "x", (ContainerSpec("c", {"a.b/c": 1}),), uid=UID))
        assert cgroups(root) == set()


async def test_the_cgroup_goes_after_the_pod_has_left_list(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SimulatedKubelet(root, cgroup_driver="cgroupfs") as kubelet:
        removed = list[int]()
        rmdir = Path.rmdir

        def observed(path: Path) -> None:
            removed.append(len(kubelet.pod_resources().pod_resources))
            rmdir(path)

        monkeypatch.setattr(Path, "rmdir", observed)
        await kubelet.add_pod(PodSpec("p", uid=UID))
        assert len(kubelet.pod_resources().pod_resources) == 1
        await kubelet.delete_pod("default", "p")
        assert removed[0] == 0


async def test_a_kubelet_that_starts_removes_the_cgroups_of_pods_that_ended(root: Path) -> None:
    async with SimulatedKubelet(root, cgroup_driver="systemd") as kubelet:
        for name in ("stays", "ends"):
            await kubelet.add_pod(PodSpec(name, uid=f"{UID}-{name}"))
        await kubelet.complete_pod("default", "ends")
        orphan = root / "cgroup" / SYSTEMD["Burstable"]
        orphan.mkdir()
        await kubelet.restart()
        assert [path[-11:] for path in cgroups(root)] == ["stays.slice"]
    async with SimulatedKubelet(root, cgroup_driver="systemd"):
        assert cgroups(root) == set()


async def test_there_are_none_unless_a_driver_is_given(kubelet: SimulatedKubelet) -> None:
    await kubelet.add_pod(PodSpec("p"))
    assert not (kubelet.root / "cgroup").exists()
