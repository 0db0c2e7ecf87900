"""The API's query parameters as OpenAPI has them. Pure; imported for the document alone."""

from dataclasses import dataclass, field
from typing import Any, Final

from exporter.core.history_query import LIMIT, MAX_LIMIT
from exporter.web.api.schema import KINDS
from exporter.web.query import TEXT_LIMIT, DeviceState


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
