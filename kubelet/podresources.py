"""The PodResources client of both processes. It returns serialized answers.

The client opens a new connection after every failure: gRPC's own reconnection waits a second or more, and
a kubelet that restarted serves another socket, possibly of another version.
"""

import asyncio
import errno
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec import Struct

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
_RETRY_UNIMPLEMENTED: Final = 30.0
"""Seconds until a method that the kubelet answered with UNIMPLEMENTED is called again."""
_GRACE: Final = 0.5
"""Seconds beyond a call's deadline after which the client cancels the call, in case gRPC does not."""

_LIST: Final = "List"
_ALLOCATABLE: Final = "GetAllocatableResources"
METHODS: Final = (_LIST, _ALLOCATABLE)
"""The methods that the client calls."""

UNDECODABLE: Final = "UNDECODABLE"
"""The `code` of a KubeletError for an answer that does not decode."""


class KubeletError(Exception):
    """A call failed: `method`, the name of the gRPC `code`, and a `message` for people.

    `rate_limited`: the kubelet refused the call because its clients together exceed 100 calls a second.
    """

    def __init__(self, method: str, code: str, message: str, *, rate_limited: bool = False) -> None:
        super().__init__(f"{method}: {code}: {message}")
        self.method = method
        self.code = code
        self.message = message
        self.rate_limited = rate_limited


class Raw(Struct, frozen=True):
    """Serialized answers of List and, where it was requested and is served, GetAllocatableResources.

    `allocatable_error`: why the requested GetAllocatableResources failed. `socket_age`: seconds since the
    kubelet created its socket, None where the socket has no readable status.
    """

    listed: bytes
    allocatable: bytes | None
    asked_allocatable: bool
    api_version: str
    notes: tuple[str, ...] = ()
    allocatable_error: KubeletError | None = None
    socket_age: float | None = None


class KubeletAnswer(Struct, frozen=True):
    """Decoded answers. `allocatable` is None where the kubelet does not serve it; `notes` explain that."""

    listed: api_pb2.ListPodResourcesResponse
    allocatable: api_pb2.AllocatableResourcesResponse | None
    api_version: str
    notes: tuple[str, ...] = ()


def decode_list(data: bytes) -> api_pb2.ListPodResourcesResponse:
    """Decode a List answer. Raises KubeletError with code UNDECODABLE."""
    try:
        return api_pb2.ListPodResourcesResponse.FromString(data)
    except DecodeError as error:
        raise undecodable(_LIST, data, error) from error


def decode_allocatable(data: bytes) -> api_pb2.AllocatableResourcesResponse:
    """Decode a GetAllocatableResources answer. Raises KubeletError with code UNDECODABLE."""
    try:
        return api_pb2.AllocatableResourcesResponse.FromString(data)
    except DecodeError as error:
        raise undecodable(_ALLOCATABLE, data, error) from error


def undecodable(method: str, data: bytes, error: DecodeError) -> KubeletError:
    """The error for `data`, an answer of `method` that does not decode."""
    return KubeletError(method, UNDECODABLE, f"the answer of {len(data)} bytes does not decode: {error}")


class KubeletClient:
    """Calls the kubelet's PodResources API at `socket`, each call within `timeout` seconds."""

    def __init__(
        self,
        socket: Path,
        *,
        timeout: float,
        allocatable_timeout: float | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`allocatable_timeout`: the limit for GetAllocatableResources; `wall`: unix time, to compare with
        file times; `steady`: monotonic time in seconds.

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
        """Expect the newest API again: the next kubelet may be another version."""
        self._api_version = "v1"
        self._has_allocatable = True
        self._older_since: float | None = None

    def _older(self) -> None:
        """Remember that this kubelet does not serve the newest API."""
        self._has_allocatable = False
        self._older_since = self._steady()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.reset()

    async def reset(self) -> None:
        """Close the connection; the next call opens a new one."""
        channel, self._channel = self._channel, None
        self._forget_api()
        if channel is not None:
            await channel.close()

    async def fetch(self) -> KubeletAnswer:
        """List and GetAllocatableResources, decoded. Raises KubeletError where List fails."""
        raw = await self.fetch_raw(allocatable=True)
        listed, offered, error = decode_list(raw.listed), None, raw.allocatable_error
        try:
            offered = None if raw.allocatable is None else decode_allocatable(raw.allocatable)
        except KubeletError as undecodable:
            error = undecodable
        notes = raw.notes if error is None else (*raw.notes, f"free devices and health are unknown: {error}")
        return KubeletAnswer(listed, offered, raw.api_version, notes)

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        """Call List, then GetAllocatableResources if `allocatable` is set.

        Raises KubeletError where List fails. A failure of GetAllocatableResources is in the returned
        `allocatable_error`, since holders are known without it.

        For a kubelet without v1 the client calls List of v1alpha1, whose messages have a subset of v1's
        fields. `notes` says which parts of the API the kubelet lacks.
        """
        self._expire_unimplemented()
        try:
            listed = await self._list()
        except KubeletError as error:
            if not error.rate_limited:
                await self.reset()
            raise
        # Read before GetAllocatableResources, whose failure resets the client.
        version = self._api_version
        offered: bytes | None = None
        failed: KubeletError | None = None
        try:
            offered = await self.fetch_allocatable() if allocatable else None
        except KubeletError as error:
            failed = error
        notes = self._notes()
        if failed is not None and not failed.rate_limited:
            await self.reset()
        return Raw(listed, offered, allocatable, version, notes, failed, self._socket_age())

    def _expire_unimplemented(self) -> None:
        if self._older_since is not None and self._steady() >= self._older_since + _RETRY_UNIMPLEMENTED:
            self._forget_api()

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

    async def fetch_allocatable(self) -> bytes | None:
        """Call GetAllocatableResources; None where the kubelet does not serve it. Raises KubeletError."""
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
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{version}.PodResourcesLister/{method}"
        )
        limit = self._timeouts[method]
        try:
            async with asyncio.timeout(limit + _GRACE):
                return await call(b"", timeout=limit)
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
                    method, code.name, f"the server on {self._socket} is not a kubelet: {details}"
                )
            return KubeletError(method, code.name, unreachable(self._socket) or details)
        return KubeletError(method, code.name, details)


def connect_error(path: Path) -> int:
    """The errno that a connection to the unix socket `path` fails with; 0 where a server listens."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0)
            code = probe.connect_ex(bytes(path))
    except OSError as error:  # no descriptor is left
        code = error.errno or errno.EIO
    # EAGAIN: the backlog is full, so a server listens.
    return 0 if code == errno.EAGAIN else code


def unreachable(path: Path) -> str | None:  # noqa: PLR0911 -- a reason each
    """Why no connection to `path` is possible, and what to do; None where the path is a usable socket."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.parent.is_dir():
            return f"there is no socket {path}: the kubelet is not up"
        return f"there is no directory {path.parent}: is the kubelet's root right, and is it mounted?"
    except PermissionError:
        return f"no permission to reach {path}: run as root, or as a user who may write to the socket"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if not stat.S_ISSOCK(status.st_mode):
        return f"{path} is not a socket: mount the directory {path.parent}, not the socket"
    if not os.access(path, os.W_OK):
        return f"no permission to connect to {path}: run as root, or as a user who may write to the socket"
    return f"no server on {path}: the kubelet is not running, or another file system is mounted there"
