"""The Pods API: the pods of the node as core/v1 messages, listed and watched.

On kubelet 1.36, List and ListPods answer OK with no pod for 0.8 to 0.9 s after the sockets are back, because
the kubelet has not heard from the API server. Get finds nothing. WatchPods opens with INITIAL_SYNC_COMPLETE
and sends ADDED for each pod later. Static pods are there at once, and alone while the API server is away.
On 1.37 the Pods API answers FAILED_PRECONDITION until then.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from google.protobuf.json_format import ParseDict
from grpc import StatusCode

from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2
from simulator.model import Pod
from simulator.node import Node
from simulator.pod_object import device_facts
from simulator.rpc import Context, RawService, decoded


class ApiServerSync:
    """The pods of the API server, none but static ones until `delay` seconds of this life have passed."""

    def __init__(self, node: Node, delay: float) -> None:
        self._node = node
        self._delay = delay
        self._event = asyncio.Event()
        if delay <= 0:
            self._event.set()

    @property
    def done(self) -> bool:
        """Whether the API server has answered."""
        return self._event.is_set()

    async def run(self) -> None:
        """Wait for the delay, then have every pod."""
        await asyncio.sleep(self._delay)
        self._event.set()
        self._node.changed()

    async def wait(self, pod: Pod) -> None:
        """Wait until the kubelet has the pod."""
        if not pod.static:
            await self._event.wait()

    def has(self, pod: Pod) -> bool:
        """Whether the kubelet has this pod."""
        return self.done or pod.static

    def pods(self) -> Iterable[Pod]:
        """The pods that the kubelet has."""
        return [pod for pod in self._node.pods.values() if self.has(pod)]

    def pod(self, namespace: str, name: str) -> Pod | None:
        """One of them."""
        pod = self._node.pods.get((namespace, name))
        return None if pod is None or not self.has(pod) else pod


BUFFERED: Final = 100
"""Events kept for a watcher that is slow; with one more the kubelet cuts it off."""


class _Watcher:
    """Events for one stream, until it is cut off."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue(BUFFERED)
        self.cut_off = False

    def put(self, event: bytes) -> None:
        """Raises QueueFull."""
        self._events.put_nowait(event)

    async def events(self) -> AsyncIterator[bytes]:
        """What was put, to the last one if it is cut off."""
        while not (self.cut_off and self._events.empty()):
            yield await self._events.get()


class PodsApi:
    """Pods and their watchers, of one kubelet's life."""

    def __init__(self, node: Node, api_sync: ApiServerSync) -> None:
        self._node = node
        self._api_sync = api_sync
        self._watchers: set[_Watcher] = set()
        self._done: set[str] = set()

    def service(self) -> RawService:
        """The service (kubelet: pods.v1alpha1)."""
        return RawService(
            "v1alpha1.Pods", {"ListPods": self._list, "GetPod": self._get}, {"WatchPods": self._watch}
        )

    def synced(self) -> None:
        """The API server answered: send ADDED for each of its pods."""
        for pod in self._api_sync.pods():
            if pod.static:
                continue
            # kubelet: of a pod that ended in an earlier life it says that it has done with it.
            (self.added if pod.active else self.deleted)(pod)

    def added(self, pod: Pod) -> None:
        """A pod was bound to this node."""
        self._publish(pod, api_pb2.ADDED, self._message(pod))

    def modified(self, pod: Pod) -> None:
        """A pod's spec, status or metadata changed."""
        self._publish(pod, api_pb2.MODIFIED, self._message(pod))

    def ended(self, pod: Pod) -> None:
        """A pod's containers have ended. If they ran, a DELETED event says that the kubelet is done with the
        pod, which is still listed.
        """
        self.modified(pod)
        if pod.taken_on is not None and not pod.reason:
            self.deleted(pod)

    def deleted(self, pod: Pod) -> None:
        """The kubelet is done with a pod; sent once. The event has name, namespace and uid alone."""
        if pod.uid in self._done:
            return
        if self._api_sync.has(pod):
            self._done.add(pod.uid)
        meta = pod_pb2.ObjectMeta(name=pod.spec.name, namespace=pod.spec.namespace, uid=pod.uid)
        gone = pod_pb2.Pod(metadata=meta, spec=pod_pb2.PodSpec(), status=pod_pb2.PodStatus())
        self._publish(pod, api_pb2.DELETED, gone)

    def _publish(self, pod: Pod, kind: api_pb2.EventType.ValueType, message: pod_pb2.Pod) -> None:
        if not self._api_sync.has(pod):
            return
        event = _event(kind, message)
        for watcher in tuple(self._watchers):
            try:
                watcher.put(event)
            except asyncio.QueueFull:
                # kubelet: it closes the watcher's channel; its content is still sent.
                self._node.event("watcher is slow, cut off")
                self._watchers.discard(watcher)
                watcher.cut_off = True

    def _sorted(self) -> list[pod_pb2.Pod]:
        return [self._message(pod) for pod in sorted(self._api_sync.pods(), key=lambda pod: pod.uid)]

    async def _list(self, content: bytes, context: Context) -> bytes:
        await decoded(api_pb2.ListPodsRequest, content, context)
        self._node.count("ListPods")
        await self._refuse_before_sync(context)
        pods = [pod.SerializeToString() for pod in self._sorted()]
        return api_pb2.ListPodsResponse(pods=pods).SerializeToString()

    async def _get(self, content: bytes, context: Context) -> bytes:
        uid = (await decoded(api_pb2.GetPodRequest, content, context)).podUID
        self._node.count("GetPod")
        await self._refuse_before_sync(context)
        pod = next((pod for pod in self._api_sync.pods() if pod.uid == uid), None)
        if pod is None:
            await context.abort(StatusCode.NOT_FOUND, f"pod with UID {uid} not found")
        return api_pb2.GetPodResponse(pod=self._message(pod).SerializeToString()).SerializeToString()

    async def _watch(self, content: bytes, context: Context) -> AsyncIterator[bytes]:
        await decoded(api_pb2.WatchPodsRequest, content, context)
        self._node.count("WatchPods")
        await self._refuse_before_sync(context)
        watcher = _Watcher()
        # kubelet: watched first and listed then, so a change in between is sent twice.
        self._watchers.add(watcher)
        try:
            for pod in self._sorted():
                yield _event(api_pb2.ADDED, pod)
            yield api_pb2.WatchPodsEvent(type=api_pb2.INITIAL_SYNC_COMPLETE).SerializeToString()
            async for event in watcher.events():
                yield event
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, "watch client channel closed")
        finally:
            self._watchers.discard(watcher)

    async def _refuse_before_sync(self, context: Context) -> None:
        if self._node.settings.pods_api_waits and not self._api_sync.done:
            await context.abort(StatusCode.FAILED_PRECONDITION, "pod sources are not ready")

    def _message(self, pod: Pod) -> pod_pb2.Pod:
        spec = pod.spec
        meta = pod_pb2.ObjectMeta(
            name=spec.name,
            namespace=spec.namespace,
            uid=pod.uid,
            creationTimestamp=pod_pb2.Time(seconds=int(pod.created)),
            labels=spec.labels,
            annotations=spec.annotations,
        )
        if pod.deleted is not None:
            meta.deletionTimestamp.seconds = int(pod.deleted)
        if spec.owner is not None:
            meta.ownerReferences.add(
                kind=spec.owner.kind,
                name=spec.owner.name,
                uid=spec.owner.uid,
                apiVersion=spec.owner.api_version,
                controller=True,
            )
        message = pod_pb2.Pod(
            metadata=meta,
            spec=pod_pb2.PodSpec(
                nodeName=self._node.settings.node_name,
                priorityClassName=spec.priority_class,
                containers=[pod_pb2.Container(name=one.name) for one in spec.containers],
                initContainers=[pod_pb2.Container(name=one.name) for one in spec.init_containers],
            ),
            status=pod_pb2.PodStatus(phase=pod.phase.value, qosClass=pod.qos_class),
        )
        devices = device_facts(pod)
        # kubelet: the status is the kubelet's own, without what the control plane writes into it.
        for others in ("resourceClaimStatuses", "extendedResourceClaimStatus"):
            devices["status"].pop(others, None)
        return ParseDict(devices, message, ignore_unknown_fields=True)


def _event(kind: api_pb2.EventType.ValueType, pod: pod_pb2.Pod) -> bytes:
    return api_pb2.WatchPodsEvent(type=kind, pod=pod.SerializeToString()).SerializeToString()
