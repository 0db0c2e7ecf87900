"""What Prometheus' API answers. https://prometheus.io/docs/prometheus/latest/querying/api/"""

from msgspec import Raw, Struct


class Reply(Struct):
    """What every answer is wrapped in: `data`, or what went wrong. `warnings` and `infos` say that it is not
    all, or not what was meant.
    """

    status: str
    data: Raw = Raw()
    errorType: str = ""  # noqa: N815 -- its name in the API
    error: str = ""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


class Sample(Struct):
    """One series at one moment: unix time, and the value as text."""

    metric: dict[str, str]
    value: tuple[float, str]


class Vector(Struct):
    """The answer of an instant query."""

    resultType: str  # noqa: N815 -- its name in the API
    result: tuple[Sample, ...]


class Line(Struct):
    """One series over time."""

    metric: dict[str, str]
    values: tuple[tuple[float, str], ...]


class Matrix(Struct):
    """The answer of a range query."""

    resultType: str  # noqa: N815 -- its name in the API
    result: tuple[Line, ...]
