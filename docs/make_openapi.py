"""exporter/web/openapi.json, made of the code: `python docs/make_openapi.py`, or `make openapi`.

The schemas are msgspec's (exporter.views.schema); the structs' docstrings are the descriptions.
"""

# ruff: noqa: INP001, E501 -- a script, run by its path; tables of prose

import json
import sys
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT))

import msgspec  # noqa: E402 -- found only with the path above

from exporter.history.query import LIMIT, MAX_LIMIT  # noqa: E402
from exporter.views import schema  # noqa: E402
from exporter.views.paging import CURSOR  # noqa: E402
from exporter.views.query import TEXT_LIMIT, StateFilter  # noqa: E402
from runtime import __version__  # noqa: E402
from runtime.exposition import Format  # noqa: E402

DOCUMENT: Final = _ROOT / "exporter" / "web" / "openapi.json"

Json = dict[str, Any]

_ABOUT: Final = """\
Which pod holds which device on one Kubernetes node, now and in the past. No request reaches the kubelet, and \
no request changes state: every address answers GET and HEAD only, any other method is 405.

An answer about the mapping says when the exporter requested the mapping from the kubelet (`taken_at`), whether \
it is fresh, and which failure followed. An unknown value is null, never an empty string. Any version may add \
members, and words to members that are one of several words; nothing below /api/v1 is removed or renamed.

Lists are sorted by their keys, as each address states. They are whole (10 000 devices are about 3 MB, a tenth of \
that as gzip), or with `limit` a page: `next` is the `cursor` of the following one, null on the last. A page begins \
after the key that its cursor names: what comes or goes between two pages repeats and hides nothing else. Where \
`generation` differs from page to page, the mapping changed meanwhile.

Errors are application/problem+json (RFC 9457) below /api/, a line of text elsewhere. Besides the listed errors, \
a request that is not valid HTTP, or is too large, may get 400, 413, 414 or 431.
"""

# --- query parameters -----------------------------------------------------------------------------------

_DAY: Final = (
    r"(19[7-9][0-9]|[2-9][0-9]{3})-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
)
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE: Final = r"(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])"
_UNITS: Final = ("[0-9]{1,3}w", "[0-9]{1,4}d", "[0-9]{1,5}h", "[0-9]{1,7}m", "[0-9]{1,8}s")
# `1h30m`: each unit once, the larger first, at least one.
_AGO: Final = "|".join(
    unit + "".join(f"({smaller})?" for smaller in _UNITS[number + 1 :]) for number, unit in enumerate(_UNITS)
)
_CURSOR: Final = (
    r"^(-?0x1\.[0-9a-f]{13}p(_(0|[1-9][0-9]{0,2})|-[1-9][0-9]{0,2})|0x0\.0p_0)\.(0|[1-9][0-9]{0,17})$"
)
_TEXT: Final[Json] = {"type": "string", "maxLength": TEXT_LIMIT}
_TIME: Final[Json] = _TEXT | {
    "anyOf": [
        {"pattern": f"^{_DAY}T{_CLOCK}{_ZONE}$", "description": "RFC 3339, with its zone"},
        {"pattern": r"^[0-9]{1,11}(\.[0-9]{1,9})?$", "description": "seconds since 1970"},
        {"pattern": f"^-({_AGO})$", "description": "a time ago, as Prometheus writes durations"},
        {"const": "now"},
    ],
    "examples": ["2026-11-20T03:12:00Z", "2026-11-20T04:12:00.5+01:00", "1795144320", "-1h30m", "now"],
}


def _parameter(
    name: str, description: str, example: str | int, kind: Json = _TEXT, *, required: bool = False
) -> Json:
    need = "required" if required else "allowEmptyValue"
    return {
        "name": name,
        "in": "query",
        "description": description,
        need: True,
        "schema": kind,
        "example": example,
    }


_Q: Final = _parameter("q", "Part of any text of the item, case-insensitive.", "llama")
_RESOURCE: Final = _parameter(
    "resource", "The name of a resource, or the part after its slash.", "nvidia.com/gpu"
)
_RESOURCE_OR_DRIVER: Final = _parameter(
    "resource",
    "The name of a resource, or the part after its slash; also what a container asked for a claimed device by, "
    "or its driver.",
    "nvidia.com/gpu",
)
_NAMESPACE: Final = _parameter("namespace", "The whole name of the holder's namespace.", "ml")
_POD: Final = _parameter("pod", "Part of the holding pod's name, case-insensitive.", "llama-0")
_DEVICE: Final = _parameter("device", "Part of a device id, case-insensitive.", "GPU-5e1f")
_DRIVER: Final = _parameter("driver", "The whole name of a DRA driver.", "gpu.nvidia.com")
_STATE: Final = _parameter(
    *("state", "The state of the device. A held device may be unhealthy too.", "held"),
    {"type": "string", "enum": [*StateFilter]},
)
_POOL: Final = _parameter("pool", "The whole name of a pool.", "worker-3")
_CLAIM: Final = _parameter("claim", "The whole name of a ResourceClaim.", "shared-gpu")
_DEVICE_FILTERS: Final = [
    *(_Q, _RESOURCE_OR_DRIVER, _NAMESPACE, _POD, _DEVICE, _STATE, _DRIVER, _POOL, _CLAIM)
]
_CLAIM_FILTERS: Final = [_Q, _DRIVER, _POOL, _DEVICE, _CLAIM, _NAMESPACE, _POD]
_KIND: Final = _parameter(
    *("kind", "The kind of anomaly.", "unhealthy_held"), {"type": "string", "enum": [*schema.KINDS]}
)
_PAGED: Final = [
    _parameter(
        *("limit", "The maximum number of items of a page; all without it.", 100),
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
    ),
    _parameter(
        "cursor",
        "The `next` of an earlier answer, of any generation, with the same filters.",
        "6e76696469612e636f6d2f677075.4750552d31",
        _TEXT | {"pattern": f"^{CURSOR}$"},
    ),
]
_EXPLAIN: Final = [
    _parameter(
        "device",
        "The device id, a part that only one id has, or the id of the parent of shares or slices.",
        "GPU-5e1f::0",
        {"type": "string", "minLength": 1, "maxLength": TEXT_LIMIT, "pattern": r"\S"},
        required=True,
    ),
    _parameter(
        "resource",
        "The whole name of its resource, or the part after the slash; needed where several resources have the id.",
        "gpu",
    ),
]
_HISTORY: Final = [
    _parameter(
        "resource",
        "A resource, or what the container asked by: its whole name or the part after the slash.",
        "gpu",
    ),
    _DRIVER,
    _parameter(
        "device",
        "The id of a device, or of a physical device with its shares and slices; where history has no such id, "
        "a part of ids, case-insensitive.",
        "GPU-5e1f",
    ),
    _NAMESPACE,
    _parameter(
        "pod", "The name of the holding pod; where history has no such pod, a part of names.", "llama-0"
    ),
    _parameter("container", "The whole name of a container; needs pod, uid or device.", "trainer"),
    _parameter("uid", "The uid of the holding pod.", "3f2a6c1e-5a56-4d0e-9a53-0d5f3c6f7b11"),
    _parameter("claim", "The whole name of a ResourceClaim.", "llama-0-gpu-x7k2p"),
    _parameter("at", "Who held what at this moment; excludes from and to.", "-1h30m", _TIME),
    _parameter("from", "Holdings that lasted until this time or later.", "2026-11-20T00:00:00Z", _TIME),
    _parameter("to", "Holdings that began at this time or earlier.", "2026-11-20T06:00:00Z", _TIME),
    _parameter(
        *("limit", "The maximum number of holdings.", 100),
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": LIMIT},
    ),
    _parameter(
        "cursor",
        "The `next` of an earlier answer, with all other parameters unchanged.",
        "0x1.ab7b9f3400000p_30.41",
        _TEXT | {"pattern": _CURSOR},
    ),
]

# --- answers --------------------------------------------------------------------------------------------


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _header(description: str, *, required: bool = True, **kind: object) -> Json:
    return {"description": description} | ({"required": True} if required else {}) | {"schema": kind}


_HEADERS: Final = {
    "ETag": _header(
        "Identifies the content except for ages: `generation`-`digest`, or a digest.",
        type="string",
        pattern=r'^W/"[^"]+"$',
    ),
    "TakenAt": _header(
        "When the exporter requested the current mapping from the kubelet. After a 304 this replaces the "
        "`taken_at` of the cached answer.",
        type="string",
        format="date-time",
    ),
    "TakenAtIfAny": _header(
        "When the exporter requested the current mapping from the kubelet, once there is one.",
        required=False,
        type="string",
        format="date-time",
    ),
    "CacheControl": _header(
        "no-cache: may be cached, must be revalidated each time. no-store: must not be cached.",
        type="string",
        enum=["no-cache", "no-store"],
    ),
    "Vary": _header("The request headers that the form of the answer depends on.", type="string"),
    "RetryAfter": _header("Seconds to wait before the next request.", type="integer", minimum=1),
    "Challenge": _header("The kind of credentials.", type="string"),
}
_CACHE: Final = {"Cache-Control": _ref("headers", "CacheControl")}
_RETRY: Final = {"Retry-After": _ref("headers", "RetryAfter")}
_CHALLENGE: Final = {"WWW-Authenticate": _ref("headers", "Challenge")}


def _problem(description: str, kind: str, **headers: dict[str, str]) -> Json:
    """An error: a Problem of this `kind`, or a line of text for ""."""
    content = {"application/problem+json": {"schema": _ref("schemas", kind)}} if kind else _LINE
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"description": description, "headers": _CACHE | named, "content": content}


_LINE: Final = {"text/plain": {"schema": {"type": "string"}}}
_BUSY: Final = "Too many requests are being answered."
_RESPONSES: Final = {
    "BadQuery": _problem("A query parameter cannot be honoured.", "QueryProblem"),
    "UnknownDevice": _problem("There is no such device.", "UnknownDeviceProblem"),
    "NotAcceptable": _problem("The Accept header allows no available media type.", "NotAcceptableProblem"),
    "Unauthorized": _problem("The request needs a valid user name and password.", "Problem", **_CHALLENGE),
    "UnauthorizedLine": _problem("The request needs a valid user name and password.", "", **_CHALLENGE),
    "Failed": _problem("The exporter failed; its log has the reason.", "Problem"),
    "FailedLine": _problem("The exporter failed; its log has the reason.", ""),
    "Unavailable": _problem(
        "Not available now: there is no mapping yet, history cannot be queried, or too many requests are "
        "being answered.",
        "UnavailableProblem",
        **_RETRY,
    ),
    "UnavailableLine": _problem(_BUSY, "", **_RETRY),
    "NotReady": _problem("The mapping is not fresh, and the reason.", ""),
}


def _responses(path: str, name: str, good: Json, *, tagged: bool) -> Json:
    """Every answer of an operation, by status."""
    api = path.startswith("/api/")
    line = "" if api else "Line"
    found: Json = {"200": good}
    if tagged:
        found["304"] = {"description": "The client's copy is still current.", "headers": good["headers"]}
    if api:
        found |= {"400": _ref("responses", "BadQuery"), "406": _ref("responses", "NotAcceptable")}
    if name == "explainDevice":
        found["404"] = _ref("responses", "UnknownDevice")
    unavailable = "NotReady" if name == "getReady" else f"Unavailable{line}"
    return found | {
        "401": _ref("responses", f"Unauthorized{line}"),
        "500": _ref("responses", f"Failed{line}"),
        "503": _ref("responses", unavailable),
    }


# --- operations -----------------------------------------------------------------------------------------

_VARIES: Final = _CACHE | {"Vary": _ref("headers", "Vary")}
_TAGGED: Final = _VARIES | {"ETag": _ref("headers", "ETag")}
_MAPPED: Final = _TAGGED | {"Devicelens-Taken-At": _ref("headers", "TakenAt")}
_MAPPED_IF_ANY: Final = _TAGGED | {"Devicelens-Taken-At": _ref("headers", "TakenAtIfAny")}


def _operation(
    path: str,
    name: str,
    tag: str,
    summary: str,
    description: str,
    *,
    parameters: list[Json] | None = None,
    headers: Json | None = None,
    content: Json,
) -> tuple[str, Json]:
    tagged = headers is not None and "ETag" in headers
    good: Json = {"description": f"{summary}."} | ({"headers": headers} if headers else {})
    described = [*(parameters or ()), *([_ref("parameters", "IfNoneMatch")] if tagged else ())]
    return path, {
        "get": {"operationId": name, "tags": [tag], "summary": summary, "description": description}
        | ({"parameters": described} if described else {})
        | {"responses": _responses(path, name, good | {"content": content}, tagged=tagged)}
    }


def _json(kind: type[msgspec.Struct]) -> Json:
    return {"application/json": {"schema": _ref("schemas", kind.__name__)}}


_PATHS: Final = dict(
    [
        _operation(
            *("/api/v1", "getIndex", "about", "The addresses of the API"),
            "Every address with its query parameters.",
            headers=_VARIES,
            content=_json(schema.IndexDocument),
        ),
        _operation(
            *("/api/v1/devices", "listDevices", "mapping", "Devices and their holders"),
            "Every device that is allocatable, held, reported by its plugin, or published by its DRA driver. "
            "Sorted by resource, then device. A device comes whole: with every holder, also holders that do not "
            "match the filters.",
            parameters=[*_DEVICE_FILTERS, *_PAGED],
            headers=_MAPPED,
            content=_json(schema.DevicesDocument),
        ),
        _operation(
            *("/api/v1/pods", "listPods", "mapping", "Pods and what they hold"),
            "Every pod that holds devices, exclusive CPUs or pinned memory. Sorted by namespace, then name; "
            "containers, and what each holds, by name. A pod comes whole where one of its holdings matches the "
            "filters.",
            parameters=[*_DEVICE_FILTERS, *_PAGED],
            headers=_MAPPED,
            content=_json(schema.PodsDocument),
        ),
        _operation(
            *("/api/v1/claims", "listClaims", "mapping", "Devices allocated through ResourceClaims (DRA)"),
            "Every device that containers hold through claims. Sorted by driver, pool, device and share. A device "
            "comes whole where one of its holders matches claim, namespace and pod.",
            parameters=[*_CLAIM_FILTERS, *_PAGED],
            headers=_MAPPED,
            content=_json(schema.ClaimsDocument),
        ),
        _operation(
            *("/api/v1/resources", "listResources", "mapping", "Counts of each resource"),
            "How many devices of each resource are known, allocatable, held, unhealthy, and free. Sorted by name.",
            parameters=[_Q, _RESOURCE, *_PAGED],
            headers=_MAPPED,
            content=_json(schema.ResourcesDocument),
        ),
        _operation(
            *("/api/v1/anomalies", "listAnomalies", "mapping", "Anomalies"),
            "Each current anomaly, as a sentence and as facts. Sorted by kind, resource, device and holder. "
            "Filters match the kind and every device and pod that takes part.",
            parameters=[_Q, _KIND, _RESOURCE, _DEVICE, _NAMESPACE, _POD, *_PAGED],
            headers=_MAPPED,
            content=_json(schema.AnomaliesDocument),
        ),
        _operation(
            *("/api/v1/status", "getStatus", "about", "The exporter itself"),
            "The kubelet's API in use, the refresh triggers, known limits, and totals. Available before the first "
            "mapping.",
            headers=_MAPPED_IF_ANY,
            content=_json(schema.StatusDocument),
        ),
        _operation(
            *("/api/v1/explain", "explainDevice", "mapping", "One device explained"),
            "How its id is read, who holds it, and why it is or is not attributed: sentences first, then facts. "
            "Ages in sentences are relative to the Date of the answer.",
            parameters=_EXPLAIN,
            headers=_MAPPED,
            content=_json(schema.ExplainDocument),
        ),
        _operation(
            *("/api/v1/history", "findHistory", "history", "Who held what, and when"),
            "Holdings at a moment (`at`) or in a range (`from`, `to`, both optional), newest first by the earliest "
            "possible start, then by number. Names are whole. At most `limit` holdings; `next` is the cursor of "
            "the following ones and stays valid while holdings come and go. `at` excludes `from` and `to`; `from` "
            "is not after `to`; `container` needs `pod`, `uid` or `device`. Available before the first mapping.",
            parameters=_HISTORY,
            headers=_MAPPED_IF_ANY,
            content=_json(schema.HistoryDocument),
        ),
        _operation(
            *("/api/v1/events", "followEvents", "mapping", "An event for each change"),
            "Server-sent events, until either side closes. `generation` comes at once and whenever the mapping, "
            "its freshness or its failure changes: its data is the generation, its id the current ETag (without W/ "
            "and quotes). `refreshed` comes when the kubelet answers without a change: its data is the time, in "
            "RFC 3339. At most four events a second; a comment every 15 seconds. Reconnecting loses nothing: the "
            "first event describes the present.",
            content={
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": "event: generation\nid: 17-9f0c1b2a3d4e\ndata: 17\nretry: 2000\n\n",
                }
            },
        ),
        _operation(
            *("/api/openapi.json", "getOpenapi", "about", "This document", "OpenAPI 3.1 of this version."),
            headers=_TAGGED,
            content={"application/json": {"schema": {"type": "object"}}},
        ),
        _operation(
            *("/metrics", "getMetrics", "operation", "Metrics for Prometheus"),
            "Every metric family of docs/metrics.md: text 0.0.4, or OpenMetrics 1.0 where Accept prefers it.",
            headers={"Vary": _ref("headers", "Vary")},
            content={form.value.partition(";")[0]: {"schema": {"type": "string"}} for form in Format},
        ),
        _operation(
            *("/-/healthy", "getHealthy", "operation", "Liveness"),
            "200 whenever the process can answer: for a liveness probe.",
            headers=_CACHE,
            content=_LINE,
        ),
        _operation(
            *("/-/ready", "getReady", "operation", "Readiness"),
            "200 while the mapping is fresh, else 503, with one line about the mapping: for a readiness probe.",
            headers=_CACHE,
            content=_LINE,
        ),
    ]
)


# --- the document ---------------------------------------------------------------------------------------

_DOCUMENTS: Final = (
    *(schema.IndexDocument, schema.DevicesDocument, schema.PodsDocument, schema.ClaimsDocument),
    *(schema.ResourcesDocument, schema.AnomaliesDocument, schema.StatusDocument),
    *(schema.ExplainDocument, schema.HistoryDocument),
)
_PROBLEMS: Final = (
    *(schema.Problem, schema.QueryProblem, schema.UnknownDeviceProblem),
    *(schema.UnavailableProblem, schema.NotAcceptableProblem),
)


def _schemas() -> Json:
    _, found = msgspec.json.schema_components(
        [*_DOCUMENTS, *_PROBLEMS], ref_template="#/components/schemas/{name}"
    )
    for name, one in found.items():
        del one["title"]
        one["description"] = cleandoc(one["description"])
        if name not in {kind.__name__ for kind in _PROBLEMS}:
            # Answers always have every member; defaults exist for readers of older answers.
            one["required"] = list(one["properties"])
            for member in one["properties"].values():
                member.pop("default", None)
    return dict(sorted(found.items()))


def document() -> Json:
    """The OpenAPI 3.1 document of this version."""
    tags = {
        "mapping": "Who holds what, by the kubelet's last answer.",
        "history": "Who held what.",
        "about": "The API and the exporter themselves.",
        "operation": "For Prometheus and for probes.",
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "devicelens exporter",
            "version": __version__,
            "summary": "Which pod holds which device, right now and at 03:12 last night",
            "description": _ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/", "description": "The exporter of a node"}],
        "security": [{}, {"basic": []}],
        "tags": [{"name": name, "description": words} for name, words in tags.items()],
        "paths": _PATHS,
        "components": {
            "schemas": _schemas(),
            "headers": _HEADERS,
            "responses": _RESPONSES,
            "parameters": {
                "IfNoneMatch": {
                    "name": "If-None-Match",
                    "in": "header",
                    "description": "Tags that the client has, or `*`; where one is current the answer is 304.",
                    "schema": {"type": "string"},
                    "example": 'W/"17-9f0c1b2a3d4e"',
                }
            },
            "securitySchemes": {
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Only where --web.config.file has users.",
                }
            },
        },
    }


def text() -> str:
    """The content of exporter/web/openapi.json."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(text())
