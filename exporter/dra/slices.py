"""Watches this node's ResourceSlices at the API server."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import msgspec

from exporter.apiserver.client import (
    DENIED,
    DENIED_AT_FIRST,
    NOT_SERVED,
    ApiServerError,
    Changed,
    Kind,
    Listed,
    ListWatch,
    ObjectList,
    Opened,
    pause_after,
)
from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.mapping.dra import SourceStatus
from exporter.mapping.published import ResourceSlice, SliceContent, content_of
from exporter.mapping.slices import PublishedDevices
from runtime.log import Episode, Log
from runtime.text import named

GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions of the API, in the order in which they are requested. Kubernetes serves v1 since 1.34."""
SELDOM: Final = 60.0
"""Seconds between two requests while a right is missing, or the cluster does not serve the API."""

_CALM: Final = 600.0
_DENIED: Final = "it may not list and watch resourceslices: see deploy/components/dra"
_PAGE: Final = msgspec.json.Decoder(ObjectList[ResourceSlice])
_SLICE: Final = msgspec.json.Decoder(ResourceSlice)
_log = Log("dra")


class SliceWatch:
    """The devices that ResourceSlices of `node` publish. `bind` it, then `run` it as an actor.

    Devices stay known while the API server is away.
    """

    def __init__(self, access: ApiServerAccess, node: str, *, expected: bool = True) -> None:
        """`expected`: slices were configured explicitly, so a missing right is a failure."""
        self._expected = expected
        self._access = access
        self._node = node
        self.devices = PublishedDevices(node)
        self._status = SourceStatus("slices", up=False, problem="ResourceSlices are not listed yet")
        self._seen: object = None
        self._changed: Callable[[], None] = _nothing
        self._expiry: asyncio.TimerHandle | None = None
        self._failing = Episode(_log, "ResourceSlices cannot be watched", calm=_CALM)

    @property
    def status(self) -> SourceStatus:
        """Whether the slices are watched."""
        return self._status

    def bind(self, changed: Callable[[], None]) -> None:
        """Set what is called after `devices` or `status` changed."""
        self._changed = changed

    async def run(self) -> None:
        """Watch until cancelled."""
        failures = denials = version = 0
        watch = self._watch(VERSIONS[version])
        while True:
            try:
                async with aclosing(watch.follow()) as events:
                    async for event in events:
                        failures = denials = 0
                        self._take(event)
            except ApiServerError as error:
                if error.code == NOT_SERVED:
                    version = (version + 1) % len(VERSIONS)
                    watch = self._watch(VERSIONS[version])
                    if version:
                        continue
                failures += 1
                denials += error.code in DENIED
                self._failed(error)
                seldom = DENIED_AT_FIRST if denials == 1 else SELDOM
                await asyncio.sleep(pause_after(error, failures, seldom=seldom))

    def _watch(self, version: str) -> ListWatch[ResourceSlice, SliceContent]:
        kind = Kind(f"{GROUP}/{version}/resourceslices", _PAGE, _SLICE, content_of, _DENIED)
        return ListWatch(self._access, kind, f"spec.nodeName={self._node}")

    def _take(self, event: Listed[SliceContent] | Opened | Changed[SliceContent]) -> None:
        now = asyncio.get_running_loop().time()
        match event:
            case Listed():
                self.devices.replace(event.items, now)
            case Opened():
                self._failing.recovered()
                self._status = SourceStatus("slices", up=True)
            case Changed():
                if event.gone:
                    self.devices.remove(event.item.name, now)
                else:
                    self.devices.put(event.item, now)
        self._settled(now)

    def _failed(self, error: ApiServerError) -> None:
        usual = error.code in {"403", NOT_SERVED} and not self._expected
        self._failing.failed(error.message, level="info" if usual else "warn")
        self._status = SourceStatus(
            "slices", up=False, problem=f"ResourceSlices are not watched: {error.message}"
        )
        self._settled(asyncio.get_running_loop().time())

    def _settled(self, now: float) -> None:
        """After an event: report a change, and call again when devices of vanished slices expire."""
        again = self.devices.expire(now)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if again is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_at(again, lambda: self._settled(loop.time()))
        if self._status.up:
            self._status = self._status._replace(problem=named(self.devices.notes, "; "))
        seen = (self.devices.revision, self.devices.drivers, self._status)
        if seen != self._seen:
            self._seen = seen
            self._changed()


def _nothing() -> None:
    """Until the source is bound."""
