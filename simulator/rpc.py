"""gRPC as a kubelet written in Go uses it: raw answers, Go's error texts, sockets that come and go.

A gRPC server creates its socket at once and unlinks it when it stops. A kubelet that dies leaves its socket
behind, and its successor replaces it, which watchers see. So each server listens on a name of its own in a
private directory; the name that clients use is a hard link, made and removed here.

`Tasks` are tasks that start together and end together.
"""

from __future__ import annotations  # grpc's generic types are generic only for type checkers

import asyncio
import os
import random
import socket
import stat
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError, Message

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
UnaryMethod: TypeAlias = "Callable[[bytes, Context], Awaitable[bytes]]"

M = TypeVar("M", bound=Message)

_GO_NAMES: Final = {
    code: "".join(word.capitalize() for word in code.name.split("_")) for code in grpc.StatusCode
} | {
    grpc.StatusCode.OK: "OK",
    grpc.StatusCode.CANCELLED: "Canceled",
}


class RpcError(Exception):
    """A call that failed, in Go's words: `rpc error: code = Unavailable desc = …`."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"rpc error: code = {_GO_NAMES[code]} desc = {details}")
        self.code = code
        self.details = details


async def call(awaitable: Awaitable[Any]) -> Any:
    """Await a client call. Raises RpcError, also for one cut off by the closing of its channel."""
    task = asyncio.current_task()
    try:
        return await awaitable
    except grpc.aio.AioRpcError as error:
        raise RpcError(error.code(), error.details() or "") from error
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise RpcError(grpc.StatusCode.CANCELLED, "grpc: the client connection is closing") from error


async def decoded(kind: type[M], content: bytes, context: Context) -> M:
    """A request, decoded before anything else is done with it; one that does not decode is refused."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        await context.abort(
            grpc.StatusCode.INTERNAL, f"grpc: error unmarshalling request: {undecodable(error)}"
        )


def undecodable(error: DecodeError) -> str:
    """Why a message does not decode, in Go's words."""
    if "UTF-8" in str(error):
        return "string field contains invalid UTF-8"
    return "proto: cannot parse invalid wire-format data"


class RawService(grpc.GenericRpcHandler):
    """A service whose methods take and give bytes; what it lacks is refused as grpc-go refuses it."""

    def __init__(
        self, name: str, unary: Mapping[str, UnaryMethod], streams: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        self._unary = unary
        self._streams = streams or {}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a method, None where the service is another."""
        service, _, method = handler_call_details.method.lstrip("/").rpartition("/")
        if service != self._name:
            return None
        if method in self._streams:
            return grpc.unary_stream_rpc_method_handler(self._streams[method])
        if method in self._unary:
            return grpc.unary_unary_rpc_method_handler(self._unary[method])
        return refuse(f"unknown method {method} for service {service}")


class UnknownServices(grpc.GenericRpcHandler):
    """Behind all services: what none of them is."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """A refusal, for whatever is asked."""
        return refuse(f"unknown service {handler_call_details.method.lstrip('/').rpartition('/')[0]}")


def refuse(details: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that answers UNIMPLEMENTED."""

    async def handler(_request: bytes, context: Context) -> NoReturn:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, details)

    return grpc.unary_unary_rpc_method_handler(handler)


PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux."""

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


def target(path: str | Path) -> str:
    """The gRPC target of a unix socket, whatever characters are in its path."""
    return f"unix:{quote(str(path))}"


class ServedSocket:
    """One server behind one public path; may be opened and closed any number of times."""

    def __init__(self, public: Path, private: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """`private`: where the server really listens, on the same file system."""
        self._public = public
        self._private = private
        self._handlers = tuple(handlers)
        self._server: grpc.aio.Server | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is being served."""
        return self._server is not None

    async def open(self, *, renamed: bool) -> None:
        """Serve. `renamed`: the public name comes by a rename (MOVED_TO), else by itself (CREATE)."""
        if self._server is not None:
            return
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers)
        self._private.unlink(missing_ok=True)
        server.add_insecure_port(target(self._private))
        await server.start()
        self._server = server
        if renamed:
            self._publish_renamed()
        else:
            os.link(self._private, self._public)

    async def close(self, *, remove: bool) -> None:
        """Stop serving, cutting calls short. `remove`: the public name too; else it stays, refusing."""
        server, self._server = self._server, None
        if remove and server is not None:
            # First, so that no client finds a name without a server.
            self._public.unlink(missing_ok=True)
        if server is not None:
            await server.stop(None)
        self._private.unlink(missing_ok=True)

    def _publish_renamed(self) -> None:
        # kubelet: a temporary file is made for its name, removed, and the socket made under that name;
        # it is still open when the socket is renamed (the recorded events show each of these steps).
        temporary = self._public.with_name(str(random.randrange(10**8, 10**10)))  # noqa: S311 -- a name
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            temporary.unlink()
            os.link(self._private, temporary)
            temporary.rename(self._public)
        finally:
            os.close(descriptor)


def is_socket(path: Path) -> bool:
    """Whether there is a socket at `path` (a link counts as what it leads to, as for the kubelet)."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def is_served(path: Path) -> bool:
    """Whether a server listens on the unix socket at `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True
        except OSError:
            return False
    return True


T = TypeVar("T")


class Tasks:
    """A set of tasks; `cancel` ends them and returns what failed."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._failures: list[BaseException] = []

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """Run `coroutine` beside the others. `awaited`: its failure is its awaiter's affair."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard if awaited else self._done)
        return task

    async def cancel(self) -> None:
        """End all tasks and wait for them. Raises an ExceptionGroup of what failed since the start."""
        while self._running:
            running = tuple(self._running)
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            # Their callbacks run in the loop's next round.
            await asyncio.sleep(0)
        failures, self._failures = self._failures, []
        if failures:
            raise BaseExceptionGroup("tasks of the simulated kubelet failed", failures)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failures.append(error)
