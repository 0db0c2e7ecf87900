"""What the kubelet says: who holds devices, and what it takes for allocatable.

Never required: without an answer nothing is concluded. Resources share answers, for the kubelet allows
all its clients together a hundred calls a second.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import grpc
import grpc.aio

from kubelet import holders
from kubelet.holders import Held, UnreadableError
from kubelet.paths import KubeletPaths, socket_target
from plugin.serving.blocking import Offload, StuckError
from runtime.clock import Clock
from runtime.log import Log

ASK_LIMIT: Final = 2.0
FRESH_FOR: Final = 1.0
"""Seconds for which an answer serves every resource that asks."""
MAX_ANSWER: Final = 16 * 1024 * 1024
"""As the kubelet's own clients: grpc's default of 4 MiB is not enough on large nodes."""
MAX_CHECKPOINT: Final = 64 * 1024 * 1024
CHECKPOINT_LIMIT: Final = 5.0
"""Seconds for reading the checkpoint."""

Nodes = Mapping[tuple[str, str], frozenset[str]]
"""The host's device nodes by resource and id."""

T = TypeVar("T")

_log = Log("pod-resources")


class PodResources:
    """Asks the PodResources socket and reads the device manager's checkpoint."""

    def __init__(self, paths: KubeletPaths, clock: Clock) -> None:
        self._paths = paths
        self._offload = Offload()
        self._clock = clock
        self._lock = asyncio.Lock()
        self._held: tuple[Held | None, Nodes] = None, {}
        self._asked = float("-inf")
        self._list = _Answer(holders.LIST_METHOD, holders.from_list, paths, clock)
        self._allocatable = _Answer(holders.ALLOCATABLE_METHOD, holders.from_allocatable, paths, clock)

    async def listed(self) -> Held | None:
        """What pods hold by List; None without an answer. Ordinary init containers are not in it."""
        return await self._list.ask()

    async def allocatable(self) -> Held | None:
        """What is healthy to the kubelet by GetAllocatableResources; None without an answer."""
        return await self._allocatable.ask()

    async def held(self, resource: str) -> frozenset[str] | None:
        """Ids of `resource` that anybody may hold; None where that is not known.

        List knows what running pods hold, the checkpoint what their init containers were given. It also
        keeps what pods held that have ended, until the kubelet allocates again.
        """
        listed = await self.listed()
        try:
            checkpointed = await self._offload.run(self.checkpointed, limit=CHECKPOINT_LIMIT)
        except StuckError:
            return None
        if listed is None or checkpointed is None:
            return None
        return holders.union(listed, checkpointed).get(resource, frozenset())

    async def holdings(self) -> tuple[Held | None, Nodes]:
        """What anybody holds, None where nobody tells, and the device nodes that were given with it.

        Callers at the same time share an answer.
        """
        async with self._lock:
            if self._clock.monotonic() - self._asked >= FRESH_FOR:
                # kubelet: List answers and names nobody, for about a second after a restart.
                listed = await self.listed()
                with suppress(StuckError):
                    checkpointed, nodes = await self._offload.run(
                        lambda: (self.checkpointed(), self._nodes()), limit=CHECKPOINT_LIMIT
                    )
                    self._held = listed or checkpointed, nodes
                self._asked = self._clock.monotonic()
            return self._held

    def _nodes(self) -> Nodes:
        nothing: Nodes = {}
        return self._checkpoint(holders.nodes_from_checkpoint, nothing) or nothing

    def checkpointed(self) -> Held | None:
        """What the checkpoint says is held, by pods that have ended as well; None where it says nothing.

        Blocking. A checkpoint that is not there yet holds nothing: the kubelet never allocated.
        """
        nothing: Held = {}
        return self._checkpoint(holders.from_checkpoint, nothing)

    def _checkpoint(self, read: Callable[[bytes], T], nothing: T) -> T | None:
        try:
            if self._paths.checkpoint.stat().st_size > MAX_CHECKPOINT:
                return None
            return read(self._paths.checkpoint.read_bytes())
        except FileNotFoundError:
            return nothing
        except (OSError, UnreadableError) as error:
            _log.debug("checkpoint unreadable", reason=error)
            return None


class _Answer:
    """One method's newest answer."""

    def __init__(self, method: str, read: Callable[[bytes], Held], paths: KubeletPaths, clock: Clock) -> None:
        self._method = method
        self._read = read
        self._paths = paths
        self._clock = clock
        self._lock = asyncio.Lock()
        self._known: Held | None = None
        self._asked = float("-inf")

    async def ask(self) -> Held | None:
        async with self._lock:
            if self._clock.monotonic() - self._asked >= FRESH_FOR:
                self._known = await self._call()
                self._asked = self._clock.monotonic()
            return self._known

    async def _call(self) -> Held | None:
        settings = [
            ("grpc.max_receive_message_length", MAX_ANSWER),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.default_authority", "localhost"),
        ]
        try:
            target = socket_target(self._paths.pod_resources_socket)
            async with grpc.aio.insecure_channel(target, options=settings) as channel:
                call = channel.unary_unary(
                    self._method, request_serializer=_as_it_is, response_deserializer=_as_it_is
                )
                answer: bytes = await call(b"", timeout=ASK_LIMIT)
            return self._read(answer)
        except grpc.aio.AioRpcError as error:
            _log.debug("no answer", method=self._method, code=error.code().name, reason=error.details())
        except (UnreadableError, ValueError) as error:
            _log.debug("no answer", method=self._method, reason=error)
        return None


def _as_it_is(message: bytes) -> bytes:
    return message
