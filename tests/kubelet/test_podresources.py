"""kubelet.podresources against servers on real unix sockets, well-behaved and not."""

import asyncio
import errno
import gc
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest

from harness import answers
from kubelet.pb.podresources.v1alpha1 import api_pb2 as alpha_pb2
from kubelet.podresources import (
    MAX_MESSAGE_BYTES,
    UNDECODABLE,
    KubeletClient,
    KubeletError,
    connect_error,
    unreachable,
)

LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
ALPHA = "/v1alpha1.PodResourcesLister/List"

LISTED, OFFERED = answers.listed(answers.pod("p", "d")), answers.offered("d", "free")

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Behaviour = Callable[[Context], Awaitable[bytes]]


def _gives(answer: bytes) -> Behaviour:
    async def behave(_: Context) -> bytes:
        return answer

    return behave


def _fails(code: grpc.StatusCode, details: str) -> Behaviour:
    async def behave(context: Context) -> bytes:
        await context.abort(code, details)

    return behave


async def _hangs(_: Context) -> bytes:
    await asyncio.Event().wait()
    return b""


WELL = {LIST: _gives(LISTED.SerializeToString()), ALLOCATABLE: _gives(OFFERED.SerializeToString())}


class Scripted(grpc.GenericRpcHandler):
    """A kubelet that follows its table, and answers UNIMPLEMENTED to other methods."""

    def __init__(self, behaviours: dict[str, Behaviour]) -> None:
        self.behaviours = behaviours
        self.calls: list[str] = []

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        method = handler_call_details.method
        behaviour = self.behaviours.get(method)
        self.calls.append(method)
        if behaviour is None:
            return None

        async def answer(_: bytes, context: Context) -> bytes:
            return await behaviour(context)

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def path(sockets: Path) -> Path:
    return sockets / "kubelet.sock"


@asynccontextmanager
async def kubelet(path: Path, behaviours: dict[str, Behaviour]) -> AsyncGenerator[Scripted]:
    server = grpc.aio.server(
        options=[("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    )
    scripted = Scripted(behaviours)
    server.add_generic_rpc_handlers([scripted])
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield scripted
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(
    path: Path, behaviours: dict[str, Behaviour], *, limit: float = 20, **options: Any
) -> AsyncGenerator[tuple[Scripted, KubeletClient]]:
    async with kubelet(path, behaviours) as server, KubeletClient(path, timeout=limit, **options) as client:
        yield server, client


async def _refusal(client: KubeletClient) -> KubeletError:
    with pytest.raises(KubeletError) as caught:
        await client.fetch()
    return caught.value


async def test_both_answers_come_as_they_were_given(path: Path) -> None:
    async with connected(path, WELL) as (server, client):
        answer = await client.fetch()
        assert (answer.listed, answer.allocatable) == (LISTED, OFFERED)
        assert (answer.api_version, answer.notes) == ("v1", ())
        raw = await client.fetch_raw(allocatable=False)
        assert (raw.listed, raw.allocatable) == (LISTED.SerializeToString(), None)
        assert raw.asked_allocatable is False
        assert server.calls == [LIST, ALLOCATABLE, LIST]


@pytest.mark.parametrize(
    "allocatable",
    [
        None,
        _fails(grpc.StatusCode.UNIMPLEMENTED, "method GetAllocatableResources not implemented"),
        _fails(grpc.StatusCode.UNKNOWN, "PodResources API GetAllocatableResources disabled"),
    ],
)
async def test_a_kubelet_without_allocatable(allocatable: Behaviour | None, path: Path) -> None:
    behaviours = {LIST: WELL[LIST]} | ({} if allocatable is None else {ALLOCATABLE: allocatable})
    async with connected(path, behaviours) as (server, client):
        for _ in range(2):
            answer = await client.fetch()
            assert (answer.listed, answer.allocatable, answer.api_version) == (LISTED, None, "v1")
            (note,) = answer.notes
            assert "does not serve GetAllocatableResources" in note
        assert server.calls == [LIST, ALLOCATABLE, LIST]


async def test_an_old_kubelet_is_called_by_its_own_api_from_then_on(path: Path) -> None:
    listed = alpha_pb2.ListPodResourcesResponse.FromString(LISTED.SerializeToString())
    async with connected(path, {ALPHA: _gives(listed.SerializeToString())}) as (server, client):
        for _ in range(2):
            answer = await client.fetch()
            assert (answer.listed, answer.allocatable, answer.api_version) == (LISTED, None, "v1alpha1")
            assert len(answer.notes) == 2
            assert "v1alpha1 only" in answer.notes[0]
        assert server.calls == [LIST, ALPHA, ALPHA]


@pytest.mark.parametrize("method", [LIST, ALLOCATABLE])
async def test_a_kubelet_that_seemed_old_for_a_moment_is_called_again(method: str, path: Path) -> None:
    """On the same connection: it never failed otherwise."""
    seconds = 0.0
    alpha = alpha_pb2.ListPodResourcesResponse().SerializeToString()
    behaviours = WELL | {ALPHA: _gives(alpha)}
    async with connected(path, behaviours, steady=lambda: seconds) as (server, client):
        assert (await client.fetch()).notes == ()
        behaviour = server.behaviours.pop(method)
        assert (await client.fetch()).allocatable is None
        server.behaviours[method] = behaviour
        seconds = 29.0
        assert (await client.fetch()).allocatable is None
        seconds = 30.0
        answer = await client.fetch()
        assert (answer.listed, answer.allocatable, answer.notes) == (LISTED, OFFERED, ())
        assert answer.api_version == "v1"


_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("behaviours", "code", "message"),
    [
        ({}, "UNIMPLEMENTED", ""),
        (
            {LIST: _fails(_EXHAUSTED, "rejected by rate limit")},
            "RESOURCE_EXHAUSTED",
            "the kubelet's rate limit for all its PodResources clients together is reached",
        ),
        (
            {LIST: _fails(_EXHAUSTED, "trying to send message")},
            "RESOURCE_EXHAUSTED",
            "the answer is too large: trying to send message",
        ),
        (
            {LIST: _gives(b"\x0a\xff\xff garbage")},
            UNDECODABLE,
            "the answer of 11 bytes does not decode: ",
        ),
        ({LIST: _hangs}, "DEADLINE_EXCEEDED", "no answer within 0.5 s"),
        ({LIST: _fails(grpc.StatusCode.PERMISSION_DENIED, "not you")}, "PERMISSION_DENIED", "not you"),
        # It cancels no task of the client.
        ({LIST: _fails(grpc.StatusCode.CANCELLED, "not you")}, "CANCELLED", "not you"),
    ],
    ids=["neither API", "rate limit", "too large", "undecodable", "hangs", "other code", "cancelled"],
)
async def test_a_failed_list_says_why(
    behaviours: dict[str, Behaviour], code: str, message: str, path: Path
) -> None:
    async with connected(path, behaviours, limit=0.5 if behaviours.get(LIST) is _hangs else 20) as (
        _,
        client,
    ):
        error = await _refusal(client)
    assert (error.method, error.code) == ("List", code)
    assert error.rate_limited is ("rate limit" in message)
    assert error.message.startswith(message)
    assert str(error) == f"List: {code}: {error.message}"


def _large(size: int) -> bytes:
    """A List answer of exactly `size` bytes."""
    listed = answers.listed(answers.pod("p", "x"))
    devices = listed.pod_resources[0].containers[0].devices[0]
    devices.device_ids[0] = "x" * (size - 64)
    devices.device_ids[0] += "x" * (size - listed.ByteSize())
    assert listed.ByteSize() == size
    return listed.SerializeToString()


async def test_the_largest_answer_that_a_kubelet_may_give_is_taken(path: Path) -> None:
    behaviours = WELL | {LIST: _gives(_large(MAX_MESSAGE_BYTES))}
    async with connected(path, behaviours) as (server, client):
        assert len((await client.fetch_raw(allocatable=True)).listed) == MAX_MESSAGE_BYTES
        server.behaviours = WELL | {LIST: _gives(_large(MAX_MESSAGE_BYTES + 1))}
        error = await _refusal(client)
        assert (error.code, error.rate_limited) == ("RESOURCE_EXHAUSTED", False)
        assert error.message.startswith("the answer is too large: ")
        assert str(MAX_MESSAGE_BYTES + 1) in error.message
        server.behaviours = WELL
        assert (await client.fetch()).listed == LISTED


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (_gives(b"\x0a\xff\xff garbage"), UNDECODABLE),
        (_fails(grpc.StatusCode.INTERNAL, "odd"), "INTERNAL"),
        (_fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"), "RESOURCE_EXHAUSTED"),
        (_hangs, "DEADLINE_EXCEEDED"),
    ],
)
async def test_a_list_is_good_although_allocatable_fails(behaviour: Behaviour, code: str, path: Path) -> None:
    behaviours, patience = WELL | {ALLOCATABLE: behaviour}, 0.5 if behaviour is _hangs else 20.0
    async with connected(path, behaviours, allocatable_timeout=patience) as (_, client):
        answer = await client.fetch()
        assert answer.listed == LISTED
        assert answer.allocatable is None
        (note,) = answer.notes
        assert f"GetAllocatableResources: {code}: " in note
        raw = await client.fetch_raw(allocatable=True)
        error = raw.allocatable_error
        if error is None:
            assert code == UNDECODABLE
        else:
            assert (error.code, error.rate_limited) == (code, code == "RESOURCE_EXHAUSTED")
        assert raw.socket_age is not None
        assert 0 <= raw.socket_age < 60


async def test_a_socket_without_a_reader_is_given_up_at_the_deadline(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen(0)
        async with KubeletClient(path, timeout=0.1) as client:
            async with asyncio.timeout(45):
                error = await _refusal(client)
            assert error.code in {"DEADLINE_EXCEEDED", "UNAVAILABLE"}


async def test_what_speaks_another_language_is_reported(path: Path) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Who answers unasked may be gone before the client has written: then it hears of a broken pipe.
        await reader.read(4096)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    server = await asyncio.start_unix_server(babble, path)
    async with server, KubeletClient(path, timeout=5) as client:
        error = await _refusal(client)
        assert error.code == "UNAVAILABLE"
        assert error.message.startswith(f"the server on {path} is not a kubelet: ")


async def test_why_nothing_can_be_reached_is_explained(path: Path) -> None:
    missing = path.parent / "pod-resources" / "kubelet.sock"
    async with KubeletClient(missing, timeout=5) as client:
        assert (await _refusal(client)).message == (
            f"there is no directory {missing.parent}: is the kubelet's root right, and is it mounted?"
        )
    async with KubeletClient(path, timeout=5) as client:
        assert (await _refusal(client)).message == f"there is no socket {path}: the kubelet is not up"
        path.touch()
        assert (await _refusal(client)).message == (
            f"{path} is not a socket: mount the directory {path.parent}, not the socket"
        )
        path.unlink()
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))
        error = await _refusal(client)
        assert error.code == "UNAVAILABLE"
        assert error.message.startswith(f"no server on {path}: the kubelet is not running, or ")
    beneath = path / "kubelet.sock"
    assert unreachable(beneath) == f"{beneath}: Not a directory"


def test_a_connection_without_a_free_descriptor_fails_with_its_errno(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_family: int) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    assert connect_error(path) == errno.EMFILE


@pytest.mark.parametrize("denied", ["stat", "connect"])
def test_who_has_no_permission_is_advised(denied: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> os.stat_result:
        raise PermissionError

    def inaccessible(_path: Path, _mode: int) -> bool:
        return False

    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        if denied == "stat":
            monkeypatch.setattr(Path, "stat", refuse)
        else:
            monkeypatch.setattr(os, "access", inaccessible)
        reason = unreachable(path) or ""
    assert reason.startswith("no permission to ")
    assert str(path) in reason
    assert "run as root" in reason


def test_a_path_that_no_socket_can_have_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="at most 107 work"):
        KubeletClient(Path("/" + "x" * 107), timeout=1)


async def test_a_kubelet_that_restarted_answers_the_first_call(path: Path) -> None:
    """Also one of another version. gRPC would refuse calls for a second, and longer with each failure."""
    async with KubeletClient(path, timeout=20) as client:
        for turn in range(5):
            version, behaviours = ("v1alpha1", {ALPHA: _gives(b"")}) if turn % 2 else ("v1", WELL)
            async with kubelet(path, behaviours):
                answer = await client.fetch()
                assert (answer.api_version, answer.allocatable) == (version, None if turn % 2 else OFFERED)
            assert (await _refusal(client)).code == "UNAVAILABLE"


async def test_a_kubelet_that_was_replaced_unnoticed_costs_one_call_at_most(path: Path) -> None:
    """No call while it was away: the connection seems to stand."""
    async with KubeletClient(path, timeout=20) as client:
        for _ in range(3):
            async with kubelet(path, WELL):
                await client.fetch()
            async with kubelet(path, WELL):
                with suppress(KubeletError):
                    await client.fetch()
                assert (await client.fetch()).listed == LISTED
            await _refusal(client)


async def test_a_reset_leads_to_the_new_socket_though_the_old_still_answers(path: Path) -> None:
    async with kubelet(path, WELL) as old, KubeletClient(path, timeout=5) as client:
        await client.fetch()
        path.rename(path.with_suffix(".old"))
        async with kubelet(path, WELL) as new:
            await client.reset()
            await client.fetch()
            assert (old.calls, new.calls) == ([LIST, ALLOCATABLE], [LIST, ALLOCATABLE])


async def test_a_rate_limited_connection_is_kept_and_any_other_failure_ends_it(path: Path) -> None:
    async with connected(path, WELL) as (server, client):
        await client.fetch()
        kept = client._channel  # pyright: ignore[reportPrivateUsage]
        server.behaviours = {LIST: _fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")}
        await _refusal(client)
        assert client._channel is kept  # pyright: ignore[reportPrivateUsage]
        server.behaviours = {LIST: _fails(grpc.StatusCode.INTERNAL, "no")}
        await _refusal(client)
        assert client._channel is None  # pyright: ignore[reportPrivateUsage]


async def test_nothing_is_left_open_after_many_failures(path: Path) -> None:
    async with KubeletClient(path, timeout=20) as client:
        await _refusal(client)
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names, not paths
        for _ in range(10):
            await _refusal(client)
            async with kubelet(path, WELL):
                await client.fetch()
        await _refusal(client)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 4  # noqa: PTH208 -- names, not paths
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_call_that_is_cancelled_leaves_nothing_behind(path: Path) -> None:
    async with connected(path, WELL | {LIST: _hangs}) as (server, client):
        for _ in range(3):
            call = asyncio.create_task(client.fetch())
            calls = len(server.calls)
            async with asyncio.timeout(45):
                while len(server.calls) == calls:
                    await asyncio.sleep(0.001)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert call.cancelled()
        server.behaviours = WELL
        assert (await client.fetch()).listed == LISTED
