"""An API server with the pods of one node: list and watch as pod monitors use them, with faults.

As with a real one, a pod is visible here before the kubelet lists it: it is bound first, the kubelet sets
startTime later, and the pod is gone when it is deleted.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from simulator.kubelet import SimulatedKubelet
from simulator.model import Pod

_FIRST_VERSION: Final = 1000


@dataclass(frozen=True, slots=True)
class ApiFaults:
    """What goes wrong. `status`: every request fails with it; `retry_after`: and says so, in seconds.

    `hang`: requests are taken and not answered. `garbage`: answers and events that are no JSON.
    `old_lists`: lists from the cache are as old as the cache's beginning, as after a failover.
    """

    status: int = 0
    retry_after: int = 0
    hang: bool = False
    garbage: bool = False
    old_lists: bool = False


class ApiServer:
    """Serves `kubelet`'s pods over HTTP; `token`: what a request must bear, None for nothing."""

    def __init__(self, kubelet: SimulatedKubelet, *, token: str | None = None, port: int = 0) -> None:
        """`port` 0: any that is free."""
        self._kubelet = kubelet
        self._port = port
        self.token = token
        self.faults = ApiFaults()
        self.calls: Counter[str] = Counter()
        self.connections = 0
        self.most_connections = 0
        self.url = ""
        self._version = _FIRST_VERSION
        self._oldest = _FIRST_VERSION
        self._objects: dict[str, dict[str, Any]] = {}
        self._at_the_beginning: dict[str, dict[str, Any]] = {}
        self._log: deque[tuple[int, bytes]] = deque()
        self._watchers: set[asyncio.Queue[bytes | None]] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Serve on loopback while in the context; the address."""
        for pod in self._kubelet.pods():
            self._objects[pod.uid] = self._object(pod)
        self._at_the_beginning = dict(self._objects)
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._pods)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        self._port = int(runner.addresses[0][1])
        self.url = f"http://127.0.0.1:{self._port}"
        with self._kubelet.following(self._told):
            try:
                yield self.url
            finally:
                self.drop_watches()
                await runner.cleanup()

    def kubeconfig(self, token_file: str = "") -> str:
        """A kubeconfig that leads here, as text."""
        user: dict[str, str] = {"tokenFile": token_file} if token_file else {}
        if self.token is not None and not token_file:
            user = {"token": self.token}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "simulated",
            "clusters": [{"name": "simulated", "cluster": {"server": self.url}}],
            "users": [{"name": "simulated", "user": user}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "simulated"}}],
        }
        return json.dumps(document)

    # What goes wrong

    def drop_watches(self) -> None:
        """Break off every watch; they may be resumed."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def compact(self) -> None:
        """Forget past events: what is resumed from before now has expired."""
        self._log.clear()
        self._oldest = self._version

    def bookmark(self) -> None:
        """Tell each watch how far it has come."""
        self._version += 1
        meta = {"resourceVersion": str(self._version)}
        self._send({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": meta}})

    def notify(self, event: dict[str, Any]) -> None:
        """Send any event on each watch, such as an ERROR."""
        self._send(event)

    # What it does

    def _told(self, kind: str, pod: Pod) -> None:
        self._version += 1
        found = self._object(pod)
        found["metadata"]["resourceVersion"] = str(self._version)
        if kind == "DELETED":
            self._objects.pop(pod.uid, None)
        else:
            self._objects[pod.uid] = found
        self._send({"type": kind, "object": found})

    def _send(self, event: dict[str, Any]) -> None:
        line = b"garbage\n" if self.faults.garbage else json.dumps(event).encode() + b"\n"
        if event["type"] != "ERROR":
            self._log.append((self._version, line))
        for watcher in self._watchers:
            watcher.put_nowait(line)

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        self.connections += 1
        self.most_connections = max(self.most_connections, self.connections)
        try:
            return await self._answer(request)
        finally:
            self.connections -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query, faults = request.query, self.faults
        watch = query.get("watch") in {"1", "true"}
        self.calls["watch" if watch else "list"] += 1
        if faults.hang:
            await asyncio.Event().wait()
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            self.calls["unauthorized"] += 1
            return _status(401, "Unauthorized", "Unauthorized")
        if faults.status:
            answer = _status(faults.status, "Simulated", "simulated failure")
            if faults.retry_after:
                answer.headers["Retry-After"] = str(faults.retry_after)
            return answer
        if query.get("fieldSelector") != f"spec.nodeName={self._kubelet.node_name}":
            return _status(403, "Forbidden", "pods is forbidden: only this node's may be read")
        return await self._watch(request) if watch else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        if self.faults.garbage:
            return web.Response(text="garbage")
        from_cache = request.query.get("resourceVersion") == "0"
        objects, version = self._objects, self._version
        if from_cache and self.faults.old_lists:
            objects, version = self._at_the_beginning, _FIRST_VERSION
        items = list(objects.values())
        # An API server serves a cached list whole.
        first = int(request.query.get("continue", "0"))
        limit = len(items) if from_cache else int(request.query.get("limit", len(items) or 1))
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if first + limit < len(items):
            meta["continue"] = str(first + limit)
        return web.json_response({"kind": "PodList", "metadata": meta, "items": items[first : first + limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion", "0"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        if version < self._oldest:
            return _status(410, "Expired", f"too old resource version: {version} ({self._oldest})")
        watcher: asyncio.Queue[bytes | None] = asyncio.Queue()
        for at, past in self._log:
            if at > version:
                watcher.put_nowait(past)
        self._watchers.add(watcher)
        try:
            await response.prepare(request)
            while (line := await watcher.get()) is not None:
                await response.write(line)
        finally:
            self._watchers.discard(watcher)
        if request.transport is not None:
            request.transport.abort()
        return response

    def _object(self, pod: Pod) -> dict[str, Any]:
        spec = pod.spec
        meta: dict[str, Any] = {
            "name": spec.name,
            "namespace": spec.namespace,
            "uid": pod.uid,
            "creationTimestamp": _rfc3339(pod.created),
            "labels": dict(spec.labels),
            "annotations": dict(spec.annotations),
        }
        if pod.deleted is not None:
            meta["deletionTimestamp"] = _rfc3339(pod.deleted)
        if spec.owner is not None:
            owner = spec.owner
            meta["ownerReferences"] = [
                {
                    "apiVersion": owner.api_version,
                    "kind": owner.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                }
            ]
        status = {"phase": pod.phase.value} | (
            {} if pod.taken_on is None else {"startTime": _rfc3339(pod.taken_on)}
        )
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"nodeName": self._kubelet.node_name, "priorityClassName": spec.priority_class},
            "status": status,
        }


def _status(code: int, reason: str, message: str) -> web.Response:
    document = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(document, status=code)


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
