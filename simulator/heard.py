"""Which of the node's pods one life of the kubelet has heard of.

kubelet, seen on 1.36: for 0.8 to 0.9 s after its sockets are back it has not heard from the API server.
List and ListPods then answer OK with no pod at all, Get does not find any, and WatchPods opens with
INITIAL_SYNC_COMPLETE alone and tells ADDED for each pod later. Static pods are there at once, and alone for
as long as the API server is away. Monitors that believe it forget every other holder.
"""

import asyncio
from collections.abc import Iterable

from simulator.model import Pod
from simulator.node import Node


class Heard:
    """The pods of the API server, none but static ones until `delay` seconds of this life have passed."""

    def __init__(self, node: Node, delay: float) -> None:
        self._node = node
        self._delay = delay
        self._event = asyncio.Event()
        if delay <= 0:
            self._event.set()

    @property
    def yet(self) -> bool:
        """Whether the API server has been heard."""
        return self._event.is_set()

    async def hear(self) -> None:
        """Let the time pass, then know every pod."""
        await asyncio.sleep(self._delay)
        self._event.set()
        self._node.changed()

    async def wait(self, pod: Pod) -> None:
        """Wait until a pod is known."""
        if not pod.static:
            await self._event.wait()

    def knows(self, pod: Pod) -> bool:
        """Whether a pod of this node is known."""
        return self.yet or pod.static

    def pods(self) -> Iterable[Pod]:
        """The pods that are known."""
        return [pod for pod in self._node.pods.values() if self.knows(pod)]

    def pod(self, namespace: str, name: str) -> Pod | None:
        """One of them."""
        pod = self._node.pods.get((namespace, name))
        return None if pod is None or not self.knows(pod) else pod
