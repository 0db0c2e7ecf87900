"""Types of configuration fields: each declares its check and its JSON Schema."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, inspect

from plugin.names import Check, attribute_problem, glob_problem, path_problem
from runtime.config_file import UNIT
from runtime.patterns import pattern_problem
from runtime.text import parse_duration, quoted

Place = tuple[str | int, ...]
Problem = tuple[Place, str]
"""(path below a struct, what is wrong there)."""

_DURATION: Final = {"pattern": r"^\s*(0|([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+)\s*$"}
_ABSOLUTE: Final = {"pattern": "^/"}

HostPath = Annotated[str, Meta(extra={"check": path_problem}, extra_json_schema=_ABSOLUTE)]
"""An absolute path on the host."""
HostGlob = Annotated[str, Meta(extra={"check": glob_problem}, extra_json_schema=_ABSOLUTE)]
"""An absolute pattern of host paths."""
Regex = Annotated[str, Meta(extra={"check": pattern_problem})]
AttributeName = Annotated[str, Meta(extra={"check": attribute_problem})]
TemplateText = Annotated[str, Meta(max_length=8192)]
"""A Jinja2 template."""
TemplatePath = Annotated[str, Meta(max_length=8192, extra_json_schema={"pattern": "^[/{]"})]
"""A template of an absolute path."""
NumaNode = Annotated[int, Meta(ge=0, le=1023)]
"""A NUMA node's number; Linux has at most 1024."""
Texts = Annotated[list[str], Meta(max_length=256)]
Command = Annotated[list[TemplateText], Meta(min_length=1, max_length=64)]
"""A program and its arguments, run without a shell."""
Duration = Annotated[str, Meta(max_length=32, extra={UNIT: True}, extra_json_schema=_DURATION)]
"""A duration in Prometheus' notation: `500ms`, `20s`, `1h30m`."""


def duration_problem(least: str, most: str) -> Check:
    """A check for durations from `least` to `most`."""

    def check(text: str) -> str | None:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            return str(error).partition(", ")[2]
        fits = parse_duration(least) <= seconds <= parse_duration(most)
        return None if fits else f"expected from {least} to {most}"

    return check


class ConfigStruct(Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the configuration whose fields have the types of this module."""

    def contradictions(self) -> Iterator[Problem]:
        """Values that are valid one by one but not together."""
        yield from ()

    def problems(self) -> Iterator[Problem]:
        """Everything wrong that the decoder does not find, in the order of the fields."""
        yield from _of_fields(self)
        yield from self.contradictions()


def _of_fields(struct: Struct) -> Iterator[Problem]:
    kind = inspect.type_info(type(struct))
    for field in kind.fields if isinstance(kind, inspect.StructType) else ():
        yield from _problems(field.type, getattr(struct, field.name), (field.encode_name,))


def _problems(kind: inspect.Type, value: Any, path: Place) -> Iterator[Problem]:
    match kind:
        case _ if isinstance(value, UnsetType) or value is UNSET:
            return
        case inspect.Metadata(type=inner, extra=extra):
            yield from _declared(extra or {}, value, path)
            yield from _problems(inner, value, path)
        case inspect.StructType():
            problems: Callable[[], Iterator[Problem]] = value.problems
            yield from ((path + below, problem) for below, problem in problems())
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            for index, each in enumerate(value):
                yield from _problems(item, each, (*path, index))
        case inspect.DictType(key_type=key_type, value_type=value_type):
            for key, each in value.items():
                yield from _problems(key_type, key, (*path, key))
                yield from _problems(value_type, each, (*path, key))
        case inspect.UnionType(types=types):
            chosen = next((option for option in types if _is_list(option) == isinstance(value, list)), None)
            if chosen is not None:
                yield from _problems(chosen, value, path)
        case _:
            return


def _declared(extra: dict[str, Any], value: Any, path: Place) -> Iterator[Problem]:
    problem = extra["check"](value) if "check" in extra else None
    if problem is not None:
        yield path, f"found {quoted(value)}, {problem}"
    if "unique" in extra:
        for index, item in enumerate(value):
            if item in value[:index]:
                yield (*path, index), f"found {quoted(item)} a second time"


def _is_list(kind: inspect.Type) -> bool:
    return isinstance(kind.type if isinstance(kind, inspect.Metadata) else kind, inspect.ListType)
