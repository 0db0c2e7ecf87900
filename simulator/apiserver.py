"""An API server with what concerns one node: pods, and the objects of Dynamic Resource Allocation.

List and watch as monitors use them, create, update and delete as drivers do, with faults. As with a real
one, a pod is visible here before the kubelet lists it: it is bound first, the kubelet sets startTime later,
and the pod is gone when it is deleted.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from simulator.dra_objects import API_VERSION, CLASSES, KINDS, SLICES, Change, ConflictError, Object
from simulator.kubelet import SimulatedKubelet
from simulator.model import Pod
from simulator.pod_object import pod_object

PODS: Final = "pods"
NODES: Final = "nodes"
_GROUP: Final = f"/apis/{API_VERSION}"


@dataclass(frozen=True, slots=True)
class ApiFaults:
    """What goes wrong. `status`: every request fails with it; `retry_after`: and says so, in seconds.

    `hang`: requests are taken and not answered. `garbage`: answers and events that are no JSON.
    `old_lists`: lists from the cache are as old as the cache's beginning, as after a failover.
    `resources`: these faults strike requests for these alone, such as resourceslices; empty: all requests.
    `forbidden`: resources that may not be read or written.
    """

    status: int = 0
    retry_after: int = 0
    hang: bool = False
    garbage: bool = False
    old_lists: bool = False
    resources: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    def strike(self, resource: str) -> bool:
        """Whether these faults concern requests for `resource`."""
        return not self.resources or resource in self.resources


NO_FAULTS: Final = ApiFaults()


class _Feed:
    """The objects of one resource: now, at the beginning, and every change for lists and watches."""

    def __init__(self, kind: str, version: int) -> None:
        self.kind = kind
        self.objects: dict[tuple[str, str], Object] = {}
        self.at_the_beginning: dict[tuple[str, str], Object] = {}
        self.first_version = self.oldest = version
        self.log: deque[tuple[int, Object, bytes]] = deque()
        self.watchers: dict[asyncio.Queue[bytes | None], Callable[[Object], bool]] = {}

    def changed(self, version: int, event: str, document: Object, line: bytes) -> None:
        """One change: kept for those who resume, and sent to each watch that selects the object."""
        meta = document["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        if event == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = document
        self.log.append((version, document, line))
        for watcher, selects in self.watchers.items():
            if selects(document):
                watcher.put_nowait(line)

    def send(self, line: bytes | None) -> None:
        """A line for every watch; None breaks them off."""
        for watcher in self.watchers:
            watcher.put_nowait(line)


class ApiServer:
    """Serves `kubelet`'s pods and its cluster's objects over HTTP.

    `token`: what a request must bear, None for nothing.
    """

    def __init__(self, kubelet: SimulatedKubelet, *, token: str | None = None, port: int = 0) -> None:
        """`port` 0: any that is free."""
        self._kubelet = kubelet
        self._port = port
        self.token = token
        self.faults = ApiFaults()
        self.calls: Counter[str] = Counter()
        """Requests: `list` and `watch` for pods; for other resources `RESOURCE.VERB`."""
        self.connections = 0
        """Requests for pods that are being answered."""
        self.most_connections = 0
        self.url = ""
        self._store = kubelet.objects
        version = self._store.version
        self._feeds = {PODS: _Feed("Pod", version)} | {r: _Feed(kind, version) for r, kind in KINDS.items()}

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Serve on loopback while in the context; the address."""
        for resource, feed in self._feeds.items():
            known = self._store.all(resource) if resource != PODS else map(self._pod, self._kubelet.pods())
            feed.objects = {(o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in known}
            feed.at_the_beginning = dict(feed.objects)
            feed.first_version = feed.oldest = self._version
        app = web.Application()
        self._add_routes(app)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        self._port = int(runner.addresses[0][1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._store.followers.add(self._stored)
        with self._kubelet.following(self._told):
            try:
                yield self.url
            finally:
                self._store.followers.discard(self._stored)
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
        for feed in self._feeds.values():
            feed.send(None)

    def compact(self) -> None:
        """Forget past events: what is resumed from before now has expired."""
        for feed in self._feeds.values():
            feed.log.clear()
            feed.oldest = self._version

    def bookmark(self) -> None:
        """Tell each watch how far it has come."""
        meta = {"resourceVersion": self._store.next_version()}
        for resource, feed in self._feeds.items():
            feed.send(self._line(resource, "BOOKMARK", {"kind": feed.kind, "metadata": meta}))

    def notify(self, event: dict[str, Any], resource: str = PODS) -> None:
        """Send any event on each watch of a resource, such as an ERROR."""
        self._feeds[resource].send(self._line(resource, event["type"], event["object"]))

    # What it does

    @property
    def _version(self) -> int:
        return self._store.version

    def _told(self, kind: str, pod: Pod) -> None:
        found = self._pod(pod)
        found["metadata"]["resourceVersion"] = self._store.next_version()
        self._changed(PODS, kind, found)

    def _stored(self, change: Change) -> None:
        self._changed(change.resource, change.kind, dict(change.object))

    def _changed(self, resource: str, kind: str, document: Object) -> None:
        line = self._line(resource, kind, document)
        self._feeds[resource].changed(self._version, kind, document, line)

    def _line(self, resource: str, kind: str, document: Object) -> bytes:
        if self._faults_of(resource).garbage:
            return b"garbage\n"
        return json.dumps({"type": kind, "object": document}).encode() + b"\n"

    def _faults_of(self, resource: str) -> ApiFaults:
        return self.faults if self.faults.strike(resource) else NO_FAULTS

    def _pod(self, pod: Pod) -> Object:
        return pod_object(pod, self._kubelet.node_name)

    # Requests

    def _add_routes(self, app: web.Application) -> None:
        app.router.add_get("/api/v1/pods", self._asked(PODS, self._list_or_watch))
        app.router.add_get("/api/v1/nodes/{name}", self._asked(NODES, self._node))
        for resource in KINDS:
            scope = "/namespaces/{namespace}" if resource not in {SLICES, CLASSES} else ""
            every, one = f"{_GROUP}/{resource}", f"{_GROUP}{scope}/{resource}"
            for path in {every, one}:
                app.router.add_get(path, self._asked(resource, self._list_or_watch))
            app.router.add_post(one, self._asked(resource, self._create))
            app.router.add_get(f"{one}/{{name}}", self._asked(resource, self._get))
            app.router.add_put(f"{one}/{{name}}", self._asked(resource, self._update))
            app.router.add_delete(f"{one}/{{name}}", self._asked(resource, self._delete))

    def _asked(
        self, resource: str, answer: Callable[[str, web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """`answer` behind what a request must bear, and behind the present faults."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self._count(resource, request)
            counted = resource == PODS
            self.connections += counted
            self.most_connections = max(self.most_connections, self.connections)
            try:
                return await self._refused(resource, request) or await answer(resource, request)
            finally:
                self.connections -= counted

        return handle

    def _count(self, resource: str, request: web.Request) -> None:
        if request.method == "GET":
            verb = "get" if "name" in request.match_info else "watch" if _watches(request) else "list"
        else:
            verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}[request.method]
        self.calls[verb if resource == PODS else f"{resource}.{verb}"] += 1

    async def _refused(self, resource: str, request: web.Request) -> web.Response | None:
        """The answer of a fault, or to a request that may not be made."""
        faults = self._faults_of(resource)
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
        if resource in self.faults.forbidden:
            return _status(403, "Forbidden", f"{resource} is forbidden")
        if (
            resource == PODS
            and request.query.get("fieldSelector") != f"spec.nodeName={self._kubelet.node_name}"
        ):
            return _status(403, "Forbidden", "pods is forbidden: only this node's may be read")
        return None

    async def _node(self, _resource: str, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name != self._kubelet.node_name:
            return _status(404, "NotFound", f'nodes "{name}" not found')
        meta = {"name": name, "uid": self._kubelet.node_uid}
        return web.json_response({"apiVersion": "v1", "kind": "Node", "metadata": meta})

    async def _get(self, resource: str, request: web.Request) -> web.StreamResponse:
        if self._faults_of(resource).garbage:
            return web.Response(text="garbage")
        found = self._store.get(resource, request.match_info["name"], _namespace(request))
        return web.json_response(found) if found is not None else _not_found(resource, request)

    async def _create(self, resource: str, request: web.Request) -> web.StreamResponse:
        document = await request.json()
        if namespace := _namespace(request):
            document.setdefault("metadata", {})["namespace"] = namespace
        try:
            return web.json_response(self._store.create(resource, document), status=201)
        except ConflictError as error:
            return _status(409, "AlreadyExists", str(error))

    async def _update(self, resource: str, request: web.Request) -> web.StreamResponse:
        try:
            return web.json_response(self._store.update(resource, await request.json()))
        except KeyError:
            return _not_found(resource, request)
        except ConflictError as error:
            return _status(409, "Conflict", str(error))

    async def _delete(self, resource: str, request: web.Request) -> web.StreamResponse:
        try:
            self._store.delete(resource, request.match_info["name"], _namespace(request))
        except KeyError:
            return _not_found(resource, request)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _list_or_watch(self, resource: str, request: web.Request) -> web.StreamResponse:
        feed = self._feeds[resource]
        if _watches(request):
            return await self._watch(feed, request)
        return self._list(feed, self._faults_of(resource), request)

    def _list(self, feed: _Feed, faults: ApiFaults, request: web.Request) -> web.Response:
        if faults.garbage:
            return web.Response(text="garbage")
        from_cache = request.query.get("resourceVersion") == "0"
        objects, version = feed.objects, self._version
        if from_cache and faults.old_lists:
            objects, version = feed.at_the_beginning, feed.first_version
        items = list(filter(_selector(request), objects.values()))
        # An API server serves a cached list whole.
        first = int(request.query.get("continue", "0"))
        limit = len(items) if from_cache else int(request.query.get("limit", len(items) or 1))
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if first + limit < len(items):
            meta["continue"] = str(first + limit)
        answer = {"kind": f"{feed.kind}List", "metadata": meta, "items": items[first : first + limit]}
        return web.json_response(answer)

    async def _watch(self, feed: _Feed, request: web.Request) -> web.StreamResponse:
        version = int(request.query.get("resourceVersion", "0"))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        if version < feed.oldest:
            return _status(410, "Expired", f"too old resource version: {version} ({feed.oldest})")
        watcher: asyncio.Queue[bytes | None] = asyncio.Queue()
        selects = _selector(request)
        for at, document, past in feed.log:
            if at > version and selects(document):
                watcher.put_nowait(past)
        feed.watchers[watcher] = selects
        try:
            await response.prepare(request)
            while (line := await watcher.get()) is not None:
                await response.write(line)
        finally:
            feed.watchers.pop(watcher, None)
        if request.transport is not None:
            request.transport.abort()
        return response


def _watches(request: web.Request) -> bool:
    return request.query.get("watch") in {"1", "true"}


def _namespace(request: web.Request) -> str:
    return request.match_info.get("namespace", "")


def _selector(request: web.Request) -> Callable[[Object], bool]:
    """The request's field selector (`spec.nodeName=a,spec.driver=b`), and the namespace of its path."""
    terms = [term.partition("=") for term in request.query.get("fieldSelector", "").split(",") if term]
    namespace = _namespace(request)

    def selects(document: Object) -> bool:
        if namespace and document["metadata"].get("namespace") != namespace:
            return False
        return all(_field(document, path) == value.removeprefix("=") for path, _, value in terms)

    return selects


def _field(document: Object, path: str) -> object:
    found: Any = document
    for name in path.split("."):
        found = found.get(name, "") if isinstance(found, dict) else ""
    return found


def _not_found(resource: str, request: web.Request) -> web.Response:
    return _status(404, "NotFound", f'{resource} "{request.match_info["name"]}" not found')


def _status(code: int, reason: str, message: str) -> web.Response:
    document = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(document, status=code)
