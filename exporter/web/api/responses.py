"""What an address may answer, as OpenAPI has it. Pure; imported for the document alone."""

from typing import Any, Final

from daemon.exposition import Format
from exporter.web.api.operations import Operation
from exporter.web.api.serving import EVENTS, JSON, TAKEN_AT

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
