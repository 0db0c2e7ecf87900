"""gRPC as a kubelet written in Go does it: raw answers, Go's words for errors."""

from __future__ import annotations  # grpc's generic types are generic only for type checkers

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

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
