"""The advertised list, as every open ListAndWatch stream gets it: the whole list whenever it changes."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from plugin.core.inventory import Advertised
from plugin.pb.deviceplugin.v1beta1 import api_pb2 as pb


class Board:
    """Holds the newest list. A stream that is slow skips to the newest, never to an older one."""

    def __init__(self, on_shown: Callable[[], None]) -> None:
        """`on_shown` is called whenever a list is about to go to a kubelet."""
        self.message = b""
        """The list as a serialized ListAndWatchResponse."""
        self.version = 0
        self.on_shown = on_shown
        self._encoded: dict[str, tuple[Advertised, bytes]] = {}
        self._streams: set[Stream] = set()

    def publish(self, advertised: Iterable[Advertised]) -> None:
        """Send this list to every stream, unless it is what they have."""
        encoded: dict[str, tuple[Advertised, bytes]] = {}
        for entry in advertised:
            known = self._encoded.get(entry.id)
            encoded[entry.id] = known if known is not None and known[0] is entry else (entry, _piece(entry))
        self._encoded = encoded
        message = b"".join([piece for _, piece in encoded.values()])
        if message != self.message:
            self.message = message
            self.version += 1
            for stream in self._streams:
                stream.wake()

    @contextmanager
    def follow(self) -> Generator["Stream"]:
        """A new stream's view: the list as it is now, then each change."""
        stream = Stream(self)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)


class Stream:
    """What one ListAndWatch stream has been given and still needs."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent: int | None = None
        self._wake = asyncio.Event()
        self._ended = False

    async def next(self) -> bytes | None:
        """The newest list that this stream has not had yet, serialized, waited for; None at its end."""
        while not self._ended:
            if self._sent != self._board.version:
                self._sent = self._board.version
                self._board.on_shown()
                return self._board.message
            self._wake.clear()
            await self._wake.wait()
        return None

    def wake(self) -> None:
        """There is a newer list."""
        self._wake.set()

    def end(self) -> None:
        """Let `next` say that it is over."""
        self._ended = True
        self._wake.set()


def _piece(entry: Advertised) -> bytes:
    """One entry of the list, as a list of it alone: serialized lists are joined end to end.

    kubelet: without NUMA nodes, topology is left out altogether.
    """
    device = pb.Device(ID=entry.id, health="Healthy" if entry.known.healthy else "Unhealthy")
    nodes = [node for node in entry.known.device.numa_nodes if node >= 0]
    if nodes:
        device.topology.CopyFrom(pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes]))
    return pb.ListAndWatchResponse(devices=[device]).SerializeToString()
