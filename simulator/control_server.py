"""The control socket: what a person or a test may do to a simulated kubelet in another process."""

import base64
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from simulator.control import (
    Added,
    Complete,
    Counts,
    Failure,
    PodView,
    Restart,
    State,
    control_socket,
)
from simulator.faults import Faults
from simulator.kubelet import SimulatedKubelet
from simulator.model import AdmissionError, ContainerError, PodSpec

T = TypeVar("T")

LARGEST: Final = 1024 * 1024
"""Bytes of a request."""


@asynccontextmanager
async def control_server(kubelet: SimulatedKubelet) -> AsyncGenerator[Path]:
    """Serve `<root>/simulator.sock`, mode 0600, while in the context; its path. Raises OSError."""
    path = control_socket(kubelet.root)
    app = web.Application(middlewares=[_guard], client_max_size=LARGEST)
    _Control(kubelet).add_routes(app)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        path.unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            await web.UnixSite(runner, path).start()
        finally:
            os.umask(old)
        yield path
    finally:
        await runner.cleanup()
        path.unlink(missing_ok=True)


class _Control:
    """The requests; each does one thing to the kubelet."""

    def __init__(self, kubelet: SimulatedKubelet) -> None:
        self._kubelet = kubelet

    def add_routes(self, app: web.Application) -> None:
        pod = "/pods/{namespace}/{name}"
        app.add_routes(
            [
                web.get("/state", self._state),
                web.get("/pods", self._pods),
                web.post("/pods", self._add),
                web.delete(pod, self._delete),
                web.post(f"{pod}/complete", self._complete),
                web.post(f"{pod}/containers/{{container}}/restart", self._restart_container),
                web.get(f"{pod}/containers/{{container}}/responses/{{resource}}", self._response),
                web.post("/restart", self._restart),
                web.put("/faults", self._faults),
            ]
        )

    async def _state(self, _request: web.Request) -> web.Response:
        kubelet = self._kubelet
        return _json(
            State(
                root=str(kubelet.root),
                node=kubelet.node_name,
                resources={
                    name: Counts(kubelet.capacity(name), kubelet.allocatable(name), kubelet.streams(name))
                    for name in kubelet.resources()
                },
                holdings=sorted(kubelet.holdings()),
                violations=list(kubelet.violations),
                calls=dict(kubelet.calls),
                faults=kubelet.faults,
            )
        )

    async def _pods(self, _request: web.Request) -> web.Response:
        return _json(
            [
                PodView(pod.spec.namespace, pod.spec.name, pod.uid, pod.phase, pod.reason, pod.message)
                for pod in self._kubelet.pods()
            ]
        )

    async def _add(self, request: web.Request) -> web.Response:
        return _json(Added(await self._kubelet.add_pod(await _body(request, PodSpec))), status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._kubelet.delete_pod(*_names(request))
        return _json(None)

    async def _complete(self, request: web.Request) -> web.Response:
        complete = await _body(request, Complete)
        await self._kubelet.complete_pod(*_names(request), failed=complete.failed)
        return _json(None)

    async def _restart_container(self, request: web.Request) -> web.Response:
        await self._kubelet.restart_container(*_names(request), request.match_info["container"])
        return _json(None)

    async def _response(self, request: web.Request) -> web.Response:
        container, resource = request.match_info["container"], request.match_info["resource"]
        answer = self._kubelet.alloc_response(*_names(request), container, resource)
        return _json(base64.b64encode(answer.SerializeToString()).decode())

    async def _restart(self, request: web.Request) -> web.Response:
        await self._kubelet.restart((await _body(request, Restart)).down_for)
        return _json(None)

    async def _faults(self, request: web.Request) -> web.Response:
        await self._kubelet.set_faults(await _body(request, Faults))
        return _json(None)


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """What the kubelet raises, as a Failure."""
    try:
        return await handler(request)
    except AdmissionError as error:
        return _json(Failure("admission", error.message, error.reason), status=409)
    except ContainerError as error:
        return _json(Failure("container", str(error)), status=409)
    except KeyError as error:
        return _json(Failure("missing", str(error.args[0])), status=404)
    except (ValueError, RuntimeError) as error:
        return _json(Failure("invalid", str(error)), status=400)


async def _body(request: web.Request, kind: type[T]) -> T:
    return msgspec.json.decode(await request.read(), type=kind)


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _json(document: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, content_type="application/json")
