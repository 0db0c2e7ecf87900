"""Watches the pods of the kubelet's Pods API.

Rules of the kubelet (1.36, and 1.37, which has the API on by default, under the same version name):

- WatchPods sends changes of status only: a changed label or annotation shows when the pods are listed;
- the status is the one that the kubelet reports, without what others write into it: resourceClaimStatuses and
  extendedResourceClaimStatus are there at most until the kubelet has reported one;
- DELETED means that the kubelet is done with a pod, which may still exist as Succeeded or Failed;
- an event of a removed pod may come after those of its successor;
- ListPods returns the pods of the pod manager, from which PodResources' List is made as well;
- a slow watcher is disconnected; a restarted kubelet sends INITIAL_SYNC_COMPLETE before it has any pod of the
  API server (1.36), or answers FAILED_PRECONDITION until it has them all (1.37).
"""

import asyncio
import errno
from collections.abc import AsyncGenerator
from typing import Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from exporter.pods.source import (
    LabelFilter,
    PodEvent,
    PodGone,
    PodSeen,
    PodsListed,
    PodWatchError,
    StreamOpened,
    UnreadableEvent,
    of_message,
)
from kubelet.paths import KubeletPaths, socket_target
from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2
from kubelet.podresources import MAX_MESSAGE_BYTES, UNDECODABLE, connect_error, unreachable

_SERVICE: Final = "/v1alpha1.Pods"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_retries", 0),
    # Without a pool of its own a new channel would inherit the old one's reconnection back-off.
    ("grpc.use_local_subchannel_pool", 1),
)
_IN_THREAD: Final = 256 * 1024
"""Bytes of an answer above which decoding would block the event loop for milliseconds."""

_Stream: TypeAlias = "grpc.aio.UnaryStreamCall[bytes, bytes]"


class PodsApi:
    """A PodWatcher: the kubelet's Pods API. First event and answers come within `timeout` s."""

    name = "pods-api"
    words = "pods watched by the kubelet's Pods API"
    lasting = False

    def __init__(self, paths: KubeletPaths, allowed: LabelFilter, *, timeout: float) -> None:
        """Raises ValueError for a socket path that is too long for the kernel."""
        self._target = socket_target(paths.pods_api_socket)
        self._paths = paths
        self._allowed = allowed
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._stream: _Stream | None = None
        self._interrupted = False

    async def follow(self) -> AsyncGenerator[PodEvent]:
        """Watch. Raises PodWatchError, with `absent` if this kubelet does not serve the API."""
        self._interrupted = False
        async with grpc.aio.insecure_channel(self._target, options=_OPTIONS) as channel:
            ask: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
                f"{_SERVICE}/WatchPods"
            )
            stream = self._stream = ask(b"")
            self._channel = channel
            try:
                async with asyncio.timeout(self._timeout):
                    first = await stream.read()
                yield StreamOpened(anew=True)
                data = first
                while isinstance(data, bytes):
                    event = self._event(data)
                    if event is not None:
                        yield event
                    data = await stream.read()
            except grpc.aio.AioRpcError as error:
                raise self._explained(error) from error
            except TimeoutError as error:
                raise self._late() from error
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._interrupted or task is None or task.cancelling():
                    raise
                raise PodWatchError("SILENT", "the watch did not report pods that came or went") from None
            finally:
                self._channel = self._stream = None
                stream.cancel()
        raise PodWatchError("CLOSED", "the kubelet ended the watch")

    async def confirm(self, *, thorough: bool) -> PodsListed | None:  # noqa: ARG002 -- every list is
        """List the pods. Raises PodWatchError."""
        channel = self._channel
        if channel is None:
            return None
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{_SERVICE}/ListPods")
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            async with asyncio.timeout(self._timeout + 0.5):
                data = await ask(b"", timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except TimeoutError as error:
            raise self._late() from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The channel was closed beneath the call.
            return None
        try:
            if len(data) < _IN_THREAD:
                pods = self._listed(data)
            else:
                pods = await loop.run_in_executor(None, self._listed, data)
        except DecodeError as error:
            raise PodWatchError(
                UNDECODABLE, f"ListPods' answer of {len(data)} bytes does not decode: {error}"
            ) from error
        return PodsListed(pods, begun=asked, asked=asked)

    def interrupt(self) -> None:
        """Make `follow` fail."""
        if self._stream is not None:
            self._interrupted = True
            self._stream.cancel()

    def _listed(self, data: bytes) -> tuple[PodSeen, ...]:
        answer = api_pb2.ListPodsResponse.FromString(data)
        found = (of_message(pod_pb2.Pod.FromString(pod), self._allowed) for pod in answer.pods)
        return tuple(PodSeen(identity) for identity in found if identity is not None)

    def _event(self, data: bytes) -> PodEvent | None:
        try:
            event = api_pb2.WatchPodsEvent.FromString(data)
            pod = pod_pb2.Pod.FromString(event.pod)
        except DecodeError as error:
            return UnreadableEvent(f"an event of {len(data)} bytes does not decode: {error}")
        match event.type:
            case api_pb2.ADDED | api_pb2.MODIFIED:
                identity = of_message(pod, self._allowed)
                return None if identity is None else PodSeen(identity)
            case api_pb2.DELETED:
                return PodGone((pod.metadata.namespace, pod.metadata.name), pod.metadata.uid)
            case _:
                return None

    def _explained(self, error: grpc.aio.AioRpcError) -> PodWatchError:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return PodWatchError(
                code.name, f"this kubelet does not serve the Pods API: {details}", absent=True
            )
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            words = "the kubelet has not synced with the API server yet"
            return PodWatchError(code.name, f"{words}: {details}" if details else words, starting=True)
        if code is grpc.StatusCode.UNAVAILABLE:
            return self._unavailable() or PodWatchError(code.name, details)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._late()
        return PodWatchError(code.name, details)

    def _unavailable(self) -> PodWatchError | None:
        """Why nothing serves the socket; None where something does. A kubelet that serves PodResources but
        not this socket has the feature gate PodsAPI off, or no such gate: UNIMPLEMENTED, as for an unknown
        method.
        """
        socket = self._paths.pods_api_socket
        error = connect_error(socket)
        if (
            error in {errno.ENOENT, errno.ECONNREFUSED}
            and connect_error(self._paths.pod_resources_socket) == 0
        ):
            what, cause = (
                f"there is no socket {socket}",
                "the kubelet's feature gate PodsAPI is off (1.36 or later)",
            )
            if error == errno.ECONNREFUSED:  # left behind by a kubelet that had the gate on
                what = f"no process serves {socket}"
            elif not socket.parent.is_dir():
                what, cause = (
                    f"there is no directory {socket.parent}",
                    f"{cause}, or the directory is not mounted",
                )
            return PodWatchError("UNIMPLEMENTED", f"{what}: {cause}", absent=True)
        why = unreachable(socket)
        return PodWatchError("UNAVAILABLE", why, absent=not socket.exists()) if why else None

    def _late(self) -> PodWatchError:
        return PodWatchError(grpc.StatusCode.DEADLINE_EXCEEDED.name, f"no answer within {self._timeout:g} s")
