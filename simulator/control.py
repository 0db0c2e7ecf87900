"""The control socket's client, and the documents that go over it (HTTP and JSON on a unix socket)."""

import base64
from collections import Counter
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from simulator.faults import Faults
from simulator.model import AdmissionError, ContainerError, Holding, Phase, PodSpec

T = TypeVar("T")

_QUICK: Final = aiohttp.ClientTimeout(total=30)
_PATIENT: Final = aiohttp.ClientTimeout(total=None)
"""For what waits on a plugin, which may take as long as it likes."""


def control_socket(root: Path) -> Path:
    """Where a simulated kubelet below `root` is controlled."""
    return root / "simulator.sock"


class ControlError(Exception):
    """What was asked for could not be done; says why in one line."""


class Counts(msgspec.Struct, frozen=True):
    """One resource as the node reports it; `streams`: connections to its plugins."""

    capacity: int
    allocatable: int
    streams: int


class State(msgspec.Struct, frozen=True):
    """Everything that a simulated kubelet shows of itself."""

    root: str
    node: str
    resources: dict[str, Counts]
    holdings: list[Holding]
    violations: list[str]
    calls: dict[str, int]
    faults: Faults


class PodView(msgspec.Struct, frozen=True):
    """A pod bound to the node. `reason` and `message`: why it was refused."""

    namespace: str
    name: str
    uid: str
    phase: Phase
    reason: str = ""
    message: str = ""


class Added(msgspec.Struct, frozen=True):
    """A pod that runs."""

    uid: str


class Restart(msgspec.Struct, frozen=True):
    """How to restart the kubelet."""

    down_for: float = 0.0


class Complete(msgspec.Struct, frozen=True):
    """How a pod's containers ended."""

    failed: bool = False


class Failure(msgspec.Struct, frozen=True):
    """Why something was not done. `kind`: admission, container, missing or invalid."""

    kind: str
    message: str
    reason: str = ""


class ControlClient:
    """Asks a simulated kubelet that runs in another process, below `root`.

    Each method raises ControlError where nothing runs there or it cannot be done, and otherwise what
    the method of SimulatedKubelet raises.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def add_pod(self, spec: PodSpec) -> str:
        """Bind a pod, wait until it runs, return its uid. Raises AdmissionError, ContainerError."""
        return (await self._ask("POST", "/pods", Added, spec, timeout=_PATIENT)).uid

    async def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod."""
        await self._send("DELETE", _pod(namespace, name), timeout=_PATIENT)

    async def complete_pod(self, namespace: str, name: str, *, failed: bool = False) -> None:
        """Let a pod's containers end."""
        await self._send("POST", f"{_pod(namespace, name)}/complete", Complete(failed))

    async def restart_container(self, namespace: str, name: str, container: str) -> None:
        """Let one container end and start again."""
        path = f"{_pod(namespace, name)}/containers/{_quote(container)}/restart"
        await self._send("POST", path, timeout=_PATIENT)

    async def restart(self, down_for: float = 0.0) -> None:
        """Restart the kubelet; returns when it is up again."""
        await self._send("POST", "/restart", Restart(down_for), timeout=_PATIENT)

    async def set_faults(self, faults: Faults) -> None:
        """Let things go wrong; Faults() ends it."""
        await self._send("PUT", "/faults", faults)

    async def faults(self) -> Faults:
        """What goes wrong at present."""
        return (await self.state()).faults

    async def state(self) -> State:
        """Everything at once."""
        return await self._ask("GET", "/state", State)

    async def pods(self) -> list[PodView]:
        """All pods bound to the node."""
        return await self._ask("GET", "/pods", list[PodView])

    async def resources(self) -> tuple[str, ...]:
        """Resources that the node reports."""
        return tuple((await self.state()).resources)

    async def capacity(self, resource: str) -> int:
        """Devices known, healthy or not."""
        counts = (await self.state()).resources.get(resource)
        return counts.capacity if counts is not None else 0

    async def allocatable(self, resource: str) -> int:
        """Healthy devices, held or free."""
        counts = (await self.state()).resources.get(resource)
        return counts.allocatable if counts is not None else 0

    async def holdings(self) -> frozenset[Holding]:
        """Which pod holds which device, as List would report it."""
        return frozenset((await self.state()).holdings)

    async def violations(self) -> tuple[str, ...]:
        """What plugins did that they must not."""
        return tuple((await self.state()).violations)

    async def calls(self) -> Counter[str]:
        """Calls by method."""
        return Counter((await self.state()).calls)

    async def alloc_response(
        self, namespace: str, pod: str, container: str, resource: str
    ) -> deviceplugin.ContainerAllocateResponse:
        """What the plugin answered for a container."""
        path = f"{_pod(namespace, pod)}/containers/{_quote(container)}/responses/{_quote(resource)}"
        content = await self._ask("GET", path, str)
        return deviceplugin.ContainerAllocateResponse.FromString(base64.b64decode(content))

    async def _ask(self, method: str, path: str, kind: type[T], body: object = None, **settings: Any) -> T:
        """As _send, and decode the answer."""
        return msgspec.json.decode(await self._send(method, path, body, **settings), type=kind)

    async def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout: aiohttp.ClientTimeout = _QUICK,  # noqa: ASYNC109 -- aiohttp's own
    ) -> bytes:
        socket = control_socket(self._root)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.UnixConnector(str(socket)), timeout=timeout
                ) as session,
                session.request(method, f"http://simulator{path}", data=data) as response,
            ):
                content, status = await response.read(), response.status
        except TimeoutError as error:
            raise ControlError(f"the simulated kubelet at {socket} does not answer") from error
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error)
            raise ControlError(f"no simulated kubelet answers at {socket}: {reason}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ControlError(f"the simulated kubelet at {socket} ended: {error}") from error
        if status >= 400:
            raise _error(content, status)
        return content


def _error(content: bytes, status: int) -> Exception:
    try:
        failure = msgspec.json.decode(content, type=Failure)
    except msgspec.DecodeError:
        return ControlError(f"the simulated kubelet answered {status}")
    match failure.kind:
        case "admission":
            return AdmissionError(failure.reason, failure.message)
        case "container":
            return ContainerError(failure.message)
        case _:
            return ControlError(failure.message)


def _quote(segment: str) -> str:
    return quote(segment, safe="")


def _pod(namespace: str, name: str) -> str:
    return f"/pods/{_quote(namespace)}/{_quote(name)}"
