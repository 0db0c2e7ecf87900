"""Watches this node's pods at the API server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from exporter.apiserver.client import ApiServerError, Changed, Kind, Listed, ListWatch, ObjectList, Opened
from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.pods.source import (
    ApiPod,
    LabelFilter,
    PodEvent,
    PodGone,
    PodSeen,
    PodsListed,
    PodsUnchanged,
    PodWatchError,
    StreamOpened,
    of_object,
)

QUIET: Final = 1.0
"""Seconds without an event of a pod after which its last report counts as current. The kubelet learns of pods
by a watch too, and needs longer to allocate devices for a successor.
"""

_PAGE: Final = msgspec.json.Decoder(ObjectList[ApiPod])
_POD: Final = msgspec.json.Decoder(ApiPod)


class ApiServer:
    """A PodWatcher: the pods of `node` at the API server."""

    name = "apiserver"
    words = "pods watched at the API server"
    lasting = True

    def __init__(
        self, access: ApiServerAccess, node: str, allowed: LabelFilter, *, quiet: float = QUIET
    ) -> None:
        self._allowed = allowed
        self._quiet = quiet
        denied = "it may not list and watch pods: see deploy/overlays/apiserver"
        kind = Kind("/api/v1/pods", _PAGE, _POD, self._seen, denied)
        self._watch = ListWatch(access, kind, f"spec.nodeName={node}")

    @property
    def version(self) -> str:
        """The resourceVersion from which the next watch resumes."""
        return self._watch.version

    async def follow(self) -> AsyncGenerator[PodEvent]:
        """List and watch. Raises PodWatchError."""
        try:
            async with aclosing(self._watch.follow()) as events:
                async for event in events:
                    yield _pod_event(event)
        except ApiServerError as error:
            raise PodWatchError(error.code, error.message, wait=error.wait) from error

    async def confirm(self, *, thorough: bool) -> PodsUnchanged | None:
        """Wait for a quiet moment of the watch; `thorough`: have `follow` list all pods again."""
        if thorough:
            self._watch.relist()
            return None
        stream, asked = self._watch.stream, asyncio.get_running_loop().time()
        await asyncio.sleep(self._quiet)
        return PodsUnchanged(asked) if stream is not None and stream is self._watch.stream else None

    def interrupt(self) -> None:
        """End the watch; `follow` continues with another one."""
        self._watch.interrupt()

    def _seen(self, pod: ApiPod) -> PodSeen | None:
        identity = of_object(pod, self._allowed)
        # kubelet: it sets startTime when it accepts a pod; before, the API server alone knows the pod.
        return None if identity is None else PodSeen(identity, known=pod.status.start_time is not None)


def _pod_event(event: Listed[PodSeen] | Opened | Changed[PodSeen]) -> PodEvent:
    match event:
        case Listed():
            return PodsListed(event.items, begun=event.begun, asked=event.begun if event.exact else None)
        case Opened():
            return StreamOpened(anew=False)
        case Changed():
            seen = event.item
            return PodGone(seen.identity.key, seen.identity.uid) if event.gone else seen
