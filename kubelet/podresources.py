"""The PodResources client: one connection to the kubelet, and its answers as raw messages.

The connection is made anew after every failure: gRPC's own reconnection would wait a second and
more, and a kubelet that restarted serves another socket, perhaps of another version.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from kubelet.paths import socket_target
from kubelet.pb.podresources.v1 import api_pb2

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The kubelet's own limit for PodResources answers; gRPC's default of 4 MiB breaks on full nodes."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_retries", 0),
    # Without a pool of its own a new channel would inherit the old one's reconnection back-off.
    ("grpc.use_local_subchannel_pool", 1),
)
_ASK_AGAIN: Final = 30.0
"""Seconds after which a method is asked for again that this kubelet said it does not serve: one that did
serve it, or another one behind the same connection, must not be taken for an old one for good.
"""
_GRACE: Final = 0.5
"""Seconds beyond a call's deadline after which it is given up, should gRPC itself not end it."""

_LIST: Final = "List"
_ALLOCATABLE: Final = "GetAllocatableResources"
METHODS: Final = (_LIST, _ALLOCATABLE)
"""What the kubelet is asked."""

UNDECODABLE: Final = "UNDECODABLE"
"""Stands where a gRPC code would, for an answer that is not the message it should be."""


class KubeletError(Exception):
    """The kubelet did not answer as it should: `method`, the gRPC `code`'s name, and `message` for a person.

    `rate_limited` is True when the kubelet refused because all its clients together ask too often.
    """

    def __init__(self, method: str, code: str, message: str, *, rate_limited: bool = False) -> None:
        super().__init__(f"{method}: {code}: {message}")
        self.method = method
        self.code = code
        self.message = message
        self.rate_limited = rate_limited


@dataclass(frozen=True, slots=True)
class Raw:
    """Answers as bytes: List, and GetAllocatableResources where it was asked for and is served.

    `allocatable_error`: it was asked for, and failed. `socket_age`: seconds since the kubelet made its
    socket, None where that cannot be told.
    """

    listed: bytes
    allocatable: bytes | None
    asked_allocatable: bool
    api_version: str
    notes: tuple[str, ...] = ()
    allocatable_error: KubeletError | None = field(default=None, compare=False)
    socket_age: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers as messages. `allocatable` is None where the kubelet cannot tell; `notes` say so in words."""

    listed: api_pb2.ListPodResourcesResponse
    allocatable: api_pb2.AllocatableResourcesResponse | None
    api_version: str
    notes: tuple[str, ...] = ()


def decode_list(data: bytes) -> api_pb2.ListPodResourcesResponse:
    """A List answer. Raises KubeletError(code UNDECODABLE) for bytes that are none."""
    try:
        return api_pb2.ListPodResourcesResponse.FromString(data)
    except DecodeError as error:
        raise undecodable(_LIST, data, error) from error


def decode_allocatable(data: bytes) -> api_pb2.AllocatableResourcesResponse:
    """A GetAllocatableResources answer. Raises KubeletError(code UNDECODABLE) for bytes that are none."""
    try:
        return api_pb2.AllocatableResourcesResponse.FromString(data)
    except DecodeError as error:
        raise undecodable(_ALLOCATABLE, data, error) from error


def undecodable(method: str, data: bytes, error: DecodeError) -> KubeletError:
    """The error for the answer `data` of `method`, which is no protobuf message of its kind."""
    return KubeletError(method, UNDECODABLE, f"the answer of {len(data)} bytes does not decode: {error}")


class KubeletClient:
    """Asks the kubelet at `socket`, each call within `timeout` seconds."""

    def __init__(
        self,
        socket: Path,
        *,
        timeout: float,
        allocatable_timeout: float | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allocatable_timeout`: GetAllocatableResources' own limit; `wall`: unix time, as files have it;
        `steady`: seconds on a clock that nobody sets.

        Raises ValueError for a socket path that is too long for the kernel.
        """
        self._target = socket_target(socket)
        self._socket = socket
        self._wall = wall
        self._steady = steady
        self._timeouts = {_LIST: timeout, _ALLOCATABLE: allocatable_timeout or timeout}
        self._channel: grpc.aio.Channel | None = None
        self._forget_api()

    def _forget_api(self) -> None:
        """Another kubelet may be another version: ask for the newest API again."""
        self._api_version = "v1"
        self._has_allocatable = True
        self._older_since: float | None = None

    def _older(self) -> None:
        """This kubelet says that it is an older one."""
        self._has_allocatable = False
        self._older_since = self._steady()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.reset()

    async def reset(self) -> None:
        """Close the connection; the next call makes a new one."""
        channel, self._channel = self._channel, None
        self._forget_api()
        if channel is not None:
            await channel.close()

    async def fetch(self) -> Answer:
        """List and GetAllocatableResources, decoded. Raises KubeletError where List fails."""
        raw = await self.fetch_raw(allocatable=True)
        listed, offered, error = decode_list(raw.listed), None, raw.allocatable_error
        try:
            offered = None if raw.allocatable is None else decode_allocatable(raw.allocatable)
        except KubeletError as undecodable:
            error = undecodable
        notes = raw.notes if error is None else (*raw.notes, f"free devices and health are unknown: {error}")
        return Answer(listed, offered, raw.api_version, notes)

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        """List, then GetAllocatableResources if `allocatable` says so, not decoded.

        Raises KubeletError where List fails. Who holds what is known without GetAllocatableResources: if
        that fails, the error is told with the answer.

        Old kubelets: without v1, List of v1alpha1 is asked (its messages are v1's with fewer fields);
        without GetAllocatableResources the answer has none. Both are said in `notes`.
        """
        if self._older_since is not None and self._steady() >= self._older_since + _ASK_AGAIN:
            self._forget_api()
        try:
            listed = await self._list()
        except KubeletError as error:
            if not error.rate_limited:
                await self.reset()
            raise
        # As it was for List: a connection that is given up forgets what this kubelet serves.
        version = self._api_version
        offered: bytes | None = None
        failed: KubeletError | None = None
        try:
            offered = await self._allocatable() if allocatable else None
        except KubeletError as error:
            failed = error
        notes = self._notes()
        if failed is not None and not failed.rate_limited:
            await self.reset()
        return Raw(listed, offered, allocatable, version, notes, failed, self._socket_age())

    def _socket_age(self) -> float | None:
        try:
            return self._wall() - self._socket.stat().st_mtime
        except OSError:
            return None

    async def _list(self) -> bytes:
        if self._api_version == "v1":
            try:
                return await self._call("v1", _LIST)
            except KubeletError as error:
                if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                    raise
            listed = await self._call("v1alpha1", _LIST)
            self._api_version = "v1alpha1"
            self._older()
            return listed
        return await self._call(self._api_version, _LIST)

    async def _allocatable(self) -> bytes | None:
        if not self._has_allocatable:
            return None
        try:
            return await self._call("v1", _ALLOCATABLE)
        except KubeletError as error:
            # Kubelets with the method behind a feature gate that is off answer UNKNOWN, "… disabled".
            gated = error.code == grpc.StatusCode.UNKNOWN.name and "disabled" in error.message
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name and not gated:
                raise
        self._older()
        return None

    def _notes(self) -> tuple[str, ...]:
        notes: list[str] = []
        if self._api_version != "v1":
            notes.append("this kubelet serves PodResources v1alpha1 only: no NUMA, CPUs, memory or claims")
        if not self._has_allocatable:
            notes.append(
                "this kubelet does not serve GetAllocatableResources: free devices and health are unknown"
            )
        return tuple(notes)

    async def _call(self, version: str, method: str) -> bytes:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=_OPTIONS)
        # Both requests are empty messages: no bytes.
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{version}.PodResourcesLister/{method}"
        )
        limit = self._timeouts[method]
        try:
            async with asyncio.timeout(limit + _GRACE):
                return await ask(b"", timeout=limit)
        except grpc.aio.AioRpcError as error:
            raise self._explained(method, error) from error
        except TimeoutError as error:
            code = grpc.StatusCode.DEADLINE_EXCEEDED.name
            raise KubeletError(method, code, f"no answer within {limit:g} s") from error

    def _explained(self, method: str, error: grpc.aio.AioRpcError) -> KubeletError:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "rate limit" in details:
                advice = "the kubelet's rate limit for all its PodResources clients together is reached"
                return KubeletError(method, code.name, advice, rate_limited=True)
            return KubeletError(method, code.name, f"the answer is too large: {details}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return KubeletError(method, code.name, f"no answer within {self._timeouts[method]:g} s")
        if code is grpc.StatusCode.UNAVAILABLE:
            if "HTTP/2" in details:
                return KubeletError(
                    method, code.name, f"what answers on {self._socket} is no kubelet: {details}"
                )
            return KubeletError(method, code.name, unreachable(self._socket) or details)
        return KubeletError(method, code.name, details)


def unreachable(socket: Path) -> str | None:  # noqa: PLR0911 -- a reason each
    """Why nothing can be reached at `socket`, in words to act upon; None if the path itself looks well."""
    try:
        status = socket.stat()
    except FileNotFoundError:
        if socket.parent.is_dir():
            return f"there is no socket {socket}: the kubelet is not up"
        return f"there is no directory {socket.parent}: is the kubelet's root right, and is it mounted?"
    except PermissionError:
        return f"no permission to reach {socket}: it takes root, or the container's user must be let in"
    except OSError as error:
        return f"{socket}: {error.strerror or error}"
    if not stat.S_ISSOCK(status.st_mode):
        return f"{socket} is not a socket: mount the directory {socket.parent}, not the socket"
    if not os.access(socket, os.W_OK):
        return f"no permission to connect to {socket}: it takes root, or the container's user must be let in"
    return f"nobody answers on {socket}: the kubelet is not up, or another file system is mounted there"
