"""The OpenAPI 3.1 document: made of the operations and of the shapes that the answers are made of. Pure.

The shapes are msgspec's, so that they cannot drift; their docstrings are the descriptions.
"""

from inspect import cleandoc
from typing import Any, Final

import msgspec

from exporter.web.api import about_schema as about
from exporter.web.api import responses
from exporter.web.api.operations import OPERATIONS, Operation

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
            "headers": responses.HEADERS,
            "responses": responses.RESPONSES,
            "parameters": {"IfNoneMatch": responses.IF_NONE_MATCH},
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
    return found | {"responses": responses.of(operation)}


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
