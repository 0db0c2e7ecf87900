"""The OpenAPI 3.1 document: made of the operations and of the shapes that the answers are made of. Pure.

The shapes are msgspec's, so that they cannot drift; their docstrings are the descriptions.

What is at each address that programs use. Pure; imported for the index and the OpenAPI document.

The API's query parameters as OpenAPI has them. Pure; imported for the document alone.

What an address may answer, as OpenAPI has it. Pure; imported for the document alone.
"""

from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, Final

import msgspec
from msgspec import Struct

from exporter.history.query import LIMIT, MAX_LIMIT
from exporter.views import schema as about
from exporter.views.query import TEXT_LIMIT, DeviceState
from exporter.views.schema import (
    KINDS,
    AnomaliesDocument,
    ClaimsDocument,
    DevicesDocument,
    ExplainDocument,
    HistoryDocument,
    IndexDocument,
    PodsDocument,
    ResourcesDocument,
    StatusDocument,
)
from exporter.web.endpoints import EVENTS, JSON, TAKEN_AT
from runtime.exposition import Format


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter: what it does, its schema, an example."""

    name: str
    description: str
    example: str | int
    schema: dict[str, Any] = field(default_factory=lambda: _TEXT)
    required: bool = False

    def document(self) -> dict[str, Any]:
        """The Parameter Object."""
        found: dict[str, Any] = {"name": self.name, "in": "query", "description": self.description}
        if self.required:
            found["required"] = True
        else:
            found["allowEmptyValue"] = True
        return found | {"schema": self.schema, "example": self.example}


_TEXT: Final[dict[str, Any]] = {"type": "string", "maxLength": TEXT_LIMIT}
_SOME_TEXT: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": TEXT_LIMIT,
    "pattern": r"\S",
}

_DAY: Final = (
    r"(19[7-9][0-9]|[2-9][0-9]{3})-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
)
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE: Final = r"(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])"
_UNITS: Final = ("[0-9]{1,3}w", "[0-9]{1,4}d", "[0-9]{1,5}h", "[0-9]{1,7}m", "[0-9]{1,8}s")


def _ago() -> str:
    """Each unit once, the larger first, at least one: `1h30m`."""
    rests = ("".join(f"({unit})?" for unit in _UNITS[number + 1 :]) for number in range(len(_UNITS)))
    return "|".join(f"{unit}{rest}" for unit, rest in zip(_UNITS, rests, strict=True))


_TIME: Final[dict[str, Any]] = {
    "type": "string",
    "maxLength": TEXT_LIMIT,
    "anyOf": [
        {"pattern": f"^{_DAY}T{_CLOCK}{_ZONE}$", "description": "RFC 3339, with its zone"},
        {"pattern": r"^[0-9]{1,11}(\.[0-9]{1,9})?$", "description": "seconds since 1970"},
        {"pattern": f"^-({_ago()})$", "description": "a time ago, as Prometheus writes durations"},
        {"const": "now"},
    ],
    "examples": ["2026-11-20T03:12:00Z", "2026-11-20T04:12:00.5+01:00", "1795144320", "-1h30m", "now"],
}


_FLOAT: Final = r"(-?0x1\.[0-9a-f]{13}p(_(0|[1-9][0-9]{0,2})|-[1-9][0-9]{0,2})|0x0\.0p_0)"
_NUMBER: Final = r"\.(0|[1-9][0-9]{0,17})"


def _limited(pattern: str) -> dict[str, Any]:
    return {"type": "string", "maxLength": TEXT_LIMIT, "pattern": pattern}


Q: Final = Parameter("q", "Part of any of its texts, without regard to case.", "llama")
RESOURCE: Final = Parameter("resource", "A resource's whole name.", "nvidia.com/gpu")
OR_DRIVER: Final = Parameter(
    "resource", "A resource's whole name; a claimed device's driver counts as its resource.", "nvidia.com/gpu"
)
NAMESPACE: Final = Parameter("namespace", "The holder's namespace, whole.", "ml")
POD: Final = Parameter("pod", "Part of the holding pod's name, without regard to case.", "llama-0")
DEVICE: Final = Parameter("device", "Part of a device's id, without regard to case.", "GPU-5e1f")
STATE: Final = Parameter(
    "state",
    "What the device is. One that is held may be unhealthy too.",
    "held",
    {"type": "string", "enum": [*DeviceState]},
)
KIND: Final = Parameter(
    "kind", "The kind of anomaly.", "unhealthy_held", {"type": "string", "enum": [*KINDS]}
)
DRIVER: Final = Parameter("driver", "A DRA driver's whole name.", "gpu.nvidia.com")
POOL: Final = Parameter("pool", "A pool's whole name.", "worker-3")
CLAIM: Final = Parameter("claim", "A ResourceClaim's whole name.", "shared-gpu")

EXPLAINED: Final = Parameter(
    "device",
    "The device's id, or a part that only one has, or the id of what is behind shares or slices.",
    "GPU-5e1f::0",
    _SOME_TEXT,
    required=True,
)
OF_RESOURCE: Final = Parameter(
    "resource", "Its resource's whole name, or what follows the slash; where several have such an id.", "gpu"
)

_WHOLE_DEVICE: Final = Parameter(
    "device",
    "A device's whole id; the shares and slices of a physical device are found by its own.",
    "GPU-5e1f",
)
PAST: Final = (
    Parameter("resource", "A resource's whole name.", "nvidia.com/gpu"),
    DRIVER,
    _WHOLE_DEVICE,
    NAMESPACE,
    Parameter("pod", "The holding pod's whole name.", "llama-0"),
    Parameter("container", "A container's whole name; with pod, uid or device beside it.", "trainer"),
    Parameter("uid", "The holding pod's uid.", "3f2a6c1e-5a56-4d0e-9a53-0d5f3c6f7b11"),
    Parameter("at", "Who held what at this moment; instead of from and to.", "-1h30m", _TIME),
    Parameter("from", "What was held at this time or later.", "2026-11-20T00:00:00Z", _TIME),
    Parameter("to", "What was held at this time or earlier.", "2026-11-20T06:00:00Z", _TIME),
    Parameter(
        "limit",
        "How many holdings at most.",
        100,
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": LIMIT},
    ),
    Parameter(
        "cursor",
        "Where to go on: what an earlier answer gave as `next`, with everything else as it was asked then.",
        "0x1.ab7b9f3400000p_30.41",
        _limited(f"^{_FLOAT}{_NUMBER}$"),
    ),
)

FILTERS: Final = (Q, RESOURCE, NAMESPACE, POD, DEVICE, STATE)
PODS: Final = (Q, OR_DRIVER, NAMESPACE, POD, DEVICE, STATE)


@dataclass(frozen=True, slots=True)
class Operation:
    """An address: what it is for; what it answers, None where that is no JSON of ours.

    `tagged`: it has an ETag. `mapped`: it is 503 until there is a mapping, and then says when that was taken.
    """

    path: str
    name: str
    summary: str
    description: str
    answer: type[Struct] | None = None
    parameters: tuple[Parameter, ...] = ()
    tagged: bool = False
    mapped: bool = False


OPERATIONS: Final = (
    Operation(
        "/api/v1",
        "getIndex",
        "What the API has",
        "Every address with the query parameters that it knows.",
        IndexDocument,
    ),
    Operation(
        "/api/v1/devices",
        "listDevices",
        "Devices and who holds them",
        "Every device that is allocatable or held, or that its plugin tells of, whoever's plugin serves it. "
        "Sorted by resource, then device. A device is kept whole: with every holder, also those that the "
        "filters do not name.",
        DevicesDocument,
        FILTERS,
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/pods",
        "listPods",
        "Pods and what they hold",
        "Every pod that holds devices, claimed devices, exclusive CPUs or pinned memory. Sorted by "
        "namespace, then name; containers, and what each holds, by name. A pod is kept whole where the "
        "filters keep one of the things that it holds.",
        PodsDocument,
        PODS,
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/claims",
        "listClaims",
        "Devices given through ResourceClaims (DRA)",
        "Every claimed device and who holds it. Sorted by driver, pool, device and share. A device is kept "
        "whole where one of its holders has the claim, the namespace and the pod that are asked for.",
        ClaimsDocument,
        (Q, DRIVER, POOL, DEVICE, CLAIM, NAMESPACE, POD),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/resources",
        "listResources",
        "Counts of each resource",
        "How many of each resource's devices there are, can be given out, are held, are unhealthy, and are "
        "free. Sorted by name.",
        ResourcesDocument,
        (Q, RESOURCE),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/anomalies",
        "listAnomalies",
        "What is wrong",
        "Each thing that is wrong now, in words and in facts. Sorted by kind, resource, device and holder. "
        "Kept by what it is, and by any of the devices and pods that are part of it.",
        AnomaliesDocument,
        (Q, KIND, RESOURCE, DEVICE, NAMESPACE, POD),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/status",
        "getStatus",
        "The exporter itself",
        "What it asks and when, what it cannot tell, and how much of everything there is. Answered before "
        "there is a mapping too.",
        StatusDocument,
        tagged=True,
    ),
    Operation(
        "/api/v1/explain",
        "explainDevice",
        "One device explained",
        "How its id was read, who holds it, and why it is or is not attributed: in sentences first, in facts "
        "after. What ages there are in the sentences are those of the answer's Date.",
        ExplainDocument,
        (EXPLAINED, OF_RESOURCE),
        tagged=True,
        mapped=True,
    ),
    Operation(
        "/api/v1/history",
        "findHistory",
        "Who held what, when",
        "Holdings at a moment (`at`) or in a range (`from`, `to`, either may be left out), newest first by "
        "the earliest time at which each may have begun, then by number. Names are whole. At most `limit` of "
        "them; `next` goes on where they end, and stays valid while holdings come and go. `at` excludes "
        "`from` and `to`; `from` is not after `to`; `container` needs `pod`, `uid` or `device` beside it. "
        "Answered before there is a mapping too.",
        HistoryDocument,
        PAST,
        tagged=True,
    ),
    Operation(
        "/api/v1/events",
        "followEvents",
        "A word whenever something changed",
        "Server-sent events, until either side ends. `generation` comes at once and whenever the mapping, "
        "its freshness or its failure changed: its data is the generation, its id the ETag (without W/ and "
        "quotes) of what there is to fetch now. `refreshed` comes when the kubelet answered and said the "
        "same: its data is when, in RFC 3339. At most four events a second; a comment every 15 seconds. "
        "Nothing is lost by reconnecting, for the first event tells of the present.",
    ),
    Operation(
        "/api/openapi.json", "getOpenapi", "This document", "OpenAPI 3.1 of this version.", tagged=True
    ),
    Operation(
        "/metrics",
        "getMetrics",
        "For Prometheus",
        "Every metric family of docs/metrics.md: text 0.0.4, or OpenMetrics 1.0 where Accept prefers it.",
    ),
    Operation(
        "/-/healthy",
        "getHealthy",
        "Whether the process lives",
        "200 whenever it can answer at all: for a liveness probe.",
    ),
    Operation(
        "/-/ready",
        "getReady",
        "Whether the mapping is fresh",
        "200 while it is, else 503; either way one line says how it stands: for a readiness probe.",
    ),
)


_PROBLEM: Final = "application/problem+json"
_LINE: Final = "text/plain"

IF_NONE_MATCH: Final[dict[str, Any]] = {
    "name": "If-None-Match",
    "in": "header",
    "description": "Tags of answers that the client has, or `*`: what is still so is 304 without a body.",
    "schema": {"type": "string"},
    "example": 'W/"17-9f0c1b2a3d4e"',
}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


_TIMES: Final = {"type": "string", "format": "date-time"}
_ETAG: Final = r'^W/"[^"]+"$'

HEADERS: Final[dict[str, Any]] = {
    "ETag": {
        "description": "Names what the answer says, but for its ages: `generation`-`digest`, or a digest.",
        "required": True,
        "schema": {"type": "string", "pattern": _ETAG},
    },
    "TakenAt": {
        "description": "When the kubelet was asked for the present mapping. After a 304 it is this that "
        "counts, and not the `taken_at` of the answer that was kept.",
        "required": True,
        "schema": _TIMES,
    },
    "TakenAtIfAny": {
        "description": "When the kubelet was asked for the present mapping, once there is one.",
        "schema": _TIMES,
    },
    "CacheControl": {
        "description": "no-cache: may be kept, must be asked for again each time. no-store: not even kept.",
        "required": True,
        "schema": {"type": "string", "enum": ["no-cache", "no-store"]},
    },
    "Vary": {
        "description": "What of the request the answer's form depends on.",
        "required": True,
        "schema": {"type": "string"},
    },
    "RetryAfter": {
        "description": "Seconds after which to ask again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "Challenge": {
        "description": "Which kind of credentials.",
        "required": True,
        "schema": {"type": "string"},
    },
}


def _problem(
    description: str, schema: str, headers: dict[str, Any], *others: str, line: bool = False
) -> dict[str, Any]:
    schemas = [_ref("schemas", name) for name in (schema, *others)]
    content: dict[str, Any] = {_PROBLEM: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}
    if line:
        content = {_LINE: {"schema": {"type": "string"}}}
    told = {"Cache-Control": _ref("headers", "CacheControl")} | headers
    return {"description": description, "headers": told, "content": content}


_LATER: Final = {"Retry-After": _ref("headers", "RetryAfter")}
_WHO: Final = {"WWW-Authenticate": _ref("headers", "Challenge")}

RESPONSES: Final[dict[str, Any]] = {
    "BadQuery": _problem("A query parameter that cannot be honoured.", "QueryProblem", {}),
    "UnknownDevice": _problem("There is no such device.", "UnknownDeviceProblem", {}),
    "NotAcceptable": _problem("The Accept header allows no answer.", "NotAcceptableProblem", {}),
    "Unauthorized": _problem("Only with a name and a password that are right.", "Problem", _WHO),
    "UnauthorizedLine": _problem("The same.", "Problem", _WHO, line=True),
    "Failed": _problem("The exporter failed; its log says why.", "Problem", {}),
    "FailedLine": _problem("The exporter failed; its log says why.", "Problem", {}, line=True),
    "Unavailable": _problem(
        "Not now: there is no mapping yet, history cannot be asked, or too many clients are being answered.",
        "UnavailableProblem",
        _LATER,
    ),
    "UnavailableLine": _problem("Too many clients are being answered.", "Problem", _LATER, line=True),
    "NotReady": _problem("Not fresh, and why.", "Problem", {}, line=True),
}


def of(operation: Operation) -> dict[str, Any]:
    """Every answer of an operation, by status."""
    api = operation.path.startswith("/api/")
    suffix = "" if api else "Line"
    found: dict[str, Any] = {"200": _good(operation)}
    if operation.tagged:
        headers = {name: value for name, value in _headers(operation).items() if name != "Content-Encoding"}
        found["304"] = {"description": "What the client has is still so.", "headers": headers}
    if api:
        found["400"] = _ref("responses", "BadQuery")
    found["401"] = _ref("responses", f"Unauthorized{suffix}")
    if operation.name == "explainDevice":
        found["404"] = _ref("responses", "UnknownDevice")
    if api:
        found["406"] = _ref("responses", "NotAcceptable")
    found["500"] = _ref("responses", f"Failed{suffix}")
    ready = operation.name == "getReady"
    found["503"] = _ref("responses", "NotReady" if ready else f"Unavailable{suffix}")
    return found


def _headers(operation: Operation) -> dict[str, Any]:
    found = {"Cache-Control": _ref("headers", "CacheControl"), "Vary": _ref("headers", "Vary")}
    if operation.tagged:
        found["ETag"] = _ref("headers", "ETag")
    if operation.mapped:
        found[TAKEN_AT] = _ref("headers", "TakenAt")
    elif operation.tagged and operation.answer is not None:
        found[TAKEN_AT] = _ref("headers", "TakenAtIfAny")
    return found


def _good(operation: Operation) -> dict[str, Any]:
    described = {"description": f"{operation.summary}."}
    if operation.answer is not None:
        schema = _ref("schemas", operation.answer.__name__)
        return described | {"headers": _headers(operation), "content": {JSON: {"schema": schema}}}
    match operation.name:
        case "getOpenapi":
            content: dict[str, Any] = {JSON: {"schema": {"type": "object"}}}
            return described | {"headers": _headers(operation), "content": content}
        case "followEvents":
            example = "event: generation\nid: 17-9f0c1b2a3d4e\ndata: 17\nretry: 2000\n\n"
            return described | {"content": {EVENTS: {"schema": {"type": "string"}, "example": example}}}
        case "getMetrics":
            kinds = [form.value.partition(";")[0] for form in Format]
            headers = {"Vary": _ref("headers", "Vary")}
            texts = {kind: {"schema": {"type": "string"}} for kind in kinds}
            return described | {"headers": headers, "content": texts}
        case _:
            headers = {"Cache-Control": _ref("headers", "CacheControl")}
            return described | {"headers": headers, "content": {_LINE: {"schema": {"type": "string"}}}}


_PROBLEMS: Final = (
    about.Problem,
    about.QueryProblem,
    about.UnknownDeviceProblem,
    about.UnavailableProblem,
    about.NotAcceptableProblem,
)

_ABOUT: Final = """\
Which pod holds which device on one Kubernetes node, now and in the past. Nothing here asks the kubelet, and \
nothing changes state: every address answers GET and HEAD alone, any other method is 405.

An answer about the mapping tells when the kubelet was asked for it (`taken_at`), whether that is fresh, and \
what failed since. What is not known is null, never an empty text. Members may be added in any version, and \
values to those that are one of several words; nothing is taken away or renamed below /api/v1.

Lists are whole, not paged (10 000 devices are some 3 MB, a tenth of that as gzip), and sorted as each \
address says. History alone is paged.

Errors are application/problem+json (RFC 9457) below /api/, a line of text elsewhere. Besides those that are \
named with each address, a request that is no HTTP, or is too large, may be refused with 400, 413, 414 or 431.
"""


def document(version: str) -> dict[str, Any]:
    """The document of the exporter of `version`."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "devicelens exporter",
            "version": version,
            "summary": "Which pod holds which device, right now and at 03:12 last night",
            "description": _ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{"url": "/", "description": "The exporter of a node"}],
        "security": [{}, {"basic": []}],
        "tags": [
            {"name": "mapping", "description": "Who holds what, as the kubelet told it last."},
            {"name": "history", "description": "Who held what."},
            {"name": "about", "description": "The API and the exporter themselves."},
            {"name": "operation", "description": "For Prometheus and for probes."},
        ],
        "paths": {operation.path: {"get": _operation(operation)} for operation in OPERATIONS},
        "components": {
            "schemas": _schemas(),
            "headers": HEADERS,
            "responses": RESPONSES,
            "parameters": {"IfNoneMatch": IF_NONE_MATCH},
            "securitySchemes": {
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Only where --web.config.file names users.",
                }
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    parameters = [parameter.document() for parameter in operation.parameters]
    if operation.tagged:
        parameters.append({"$ref": "#/components/parameters/IfNoneMatch"})
    found: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [_tag(operation)],
        "summary": operation.summary,
        "description": operation.description,
    }
    if parameters:
        found["parameters"] = parameters
    return found | {"responses": of(operation)}


def _tag(operation: Operation) -> str:
    if not operation.path.startswith("/api/"):
        return "operation"
    if operation.name == "findHistory":
        return "history"
    return "mapping" if operation.mapped or operation.name == "followEvents" else "about"


def _schemas() -> dict[str, Any]:
    answers = [operation.answer for operation in OPERATIONS if operation.answer is not None]
    _, found = msgspec.json.schema_components(
        [*answers, *_PROBLEMS], ref_template="#/components/schemas/{name}"
    )
    problems = {kind.__name__ for kind in _PROBLEMS}
    return {name: _schema(found[name], whole=name not in problems) for name in sorted(found)}


def _schema(schema: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    """One shape; `whole`: every member is always there, whatever a reader of an older answer assumes."""
    made = {key: value for key, value in schema.items() if key != "title"}
    if "description" in made:
        made["description"] = cleandoc(made["description"])
    if whole:
        properties: dict[str, dict[str, Any]] = made["properties"]
        made["required"] = list(properties)
        made["properties"] = {
            name: {key: value for key, value in property_.items() if key != "default"}
            for name, property_ in properties.items()
        }
    return made
