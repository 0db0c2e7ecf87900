"""Devices' health in the status of pods (kubelet: UpdateAllocatedResourcesStatus)."""

import asyncio

from simulator.devices import HEALTHY, UNHEALTHY, DeviceState
from simulator.dra_manager import DraManager
from simulator.model import ContainerSpec, Health, Phase, Pod, ResourceHealth
from simulator.node import Node
from simulator.pods_api import PodsApi


class PodStatuses:
    """Keeps `health` of running pods, and says so where it changes."""

    def __init__(self, node: Node, state: DeviceState, dra: DraManager, pods_api: PodsApi) -> None:
        self._node = node
        self._state = state
        self._dra = dra
        self._pods_api = pods_api

    async def run(self) -> None:
        """Make every status anew at intervals: health that is too old becomes Unknown without an event."""
        while True:
            await asyncio.sleep(self._node.settings.status_interval)
            self.refresh()

    def refresh(self) -> None:
        """Make every status anew."""
        for pod in tuple(self._node.pods.values()):
            if pod.phase is Phase.RUNNING and self.update(pod):
                self._node.notify("MODIFIED", pod)
                self._pods_api.modified(pod)

    def update(self, pod: Pod) -> bool:
        """Make one pod's status anew; whether it changed."""
        before = pod.health
        pod.health = self._health(pod)
        return pod.health != before

    def _health(self, pod: Pod) -> Health:
        # kubelet: of app containers alone.
        found = {c.name: self._of_plugins(pod, c) | self._dra.health(pod, c) for c in pod.spec.containers}
        return {name: told for name, told in found.items() if told}

    def _of_plugins(self, pod: Pod, container: ContainerSpec) -> dict[str, tuple[ResourceHealth, ...]]:
        """kubelet: the health that the plugin listed last, Healthy for a device that it does not list."""
        told: dict[str, tuple[ResourceHealth, ...]] = {}
        for resource, held in sorted(self._state.held(pod.uid, container.name).items()):
            listed = self._state.devices.get(resource, {})
            told[resource] = tuple(
                ResourceHealth(i, HEALTHY if i not in listed or listed[i].health == HEALTHY else UNHEALTHY)
                for i in sorted(held.ids())
            )
        return told
