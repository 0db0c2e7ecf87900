"""Pods' cgroups: directories with the names that a kubelet gives them, without anything in them."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from simulator.model import Pod

Driver = Literal["systemd", "cgroupfs"]


class Cgroups:
    """The hierarchy below `root`; without a `driver` there is none.

    kubelet: a pod's cgroup is made before its containers start, and removed after List has lost the pod. Pods
    of class Guaranteed are in kubepods itself.
    """

    def __init__(self, root: Path, driver: Driver | None) -> None:
        self._root = root
        self._driver = driver

    def restore(self, active: Iterable[Pod]) -> None:
        """What a kubelet does when it starts: make the QoS classes, remove the cgroups of pods that ended."""
        if self._driver is None:
            return
        classes = (self._path("besteffort"), self._path("burstable"))
        kept = {*classes, *map(self._of, active)}
        for directory in (*classes, self._path()):
            directory.mkdir(parents=True, exist_ok=True)
            for found in directory.iterdir():
                if found not in kept:
                    found.rmdir()

    def add(self, pod: Pod) -> None:
        """Make the pod's cgroup, unless it is there."""
        if self._driver is not None:
            self._of(pod).mkdir(exist_ok=True)

    def remove(self, pod: Pod) -> None:
        """Remove the pod's cgroup if it is there."""
        if self._driver is not None:
            with suppress(FileNotFoundError):
                self._of(pod).rmdir()

    def _of(self, pod: Pod) -> Path:
        qos = pod.qos_class.lower()
        return self._path(*(() if qos == "guaranteed" else (qos,)), f"pod{pod.uid}")

    def _path(self, *names: str) -> Path:
        """A slice is named by all slices around it, too, and dashes separate them (systemd)."""
        path, slices = self._root, list[str]()
        for name in ("kubepods", *names):
            slices.append(name.replace("-", "_"))
            path /= name if self._driver == "cgroupfs" else "-".join(slices) + ".slice"
        return path
