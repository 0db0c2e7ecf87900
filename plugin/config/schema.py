"""The JSON Schema of configuration files, generated from the model, for editors.

It accepts every valid file. Templates and contradictions are beyond a schema: the plugin and
`devicelens check` refuse these.
"""

import ast
import inspect
from collections.abc import Iterable
from copy import deepcopy
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct

from plugin.config import model
from plugin.config.load import OF, PRESET

Json = dict[str, Any]

_NUMA: Final[Json] = {
    "anyOf": [{"enum": ["auto", "off", False]}, {"type": "integer", "minimum": 0, "maximum": 1023}]
}
_ADJUSTABLE: Final = (model.Share, model.Allocate, model.CdiSpec, model.PreStart)
"""Mappings of a resource that are merged with a preset's."""


def schema(presets: Iterable[str]) -> Json:
    """The schema; `presets` are the possible values of `preset`."""
    made = msgspec.json.schema(model.Configuration)
    defs: dict[str, Json] = made["$defs"]
    for struct in structs():
        _improve(struct, defs[struct.__name__])
    defs["Resource"]["properties"]["numa"] |= _NUMA
    defs["Source"] |= {"minProperties": 1, "maxProperties": 1}
    defs["Probe"]["oneOf"] = [{"required": [kind]} for kind in model.PROBE_KINDS]
    _adjusted(defs, sorted(presets))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "devicelens plugin configuration",
        "$ref": made["$ref"],
        "$defs": dict(sorted(defs.items())),
    }


def structs() -> tuple[type[Struct], ...]:
    """All structs of the model, `Configuration` first."""
    found: list[type[Struct]] = []

    def visit(info: msgspec.inspect.Type) -> None:
        if isinstance(info, msgspec.inspect.Metadata):
            info = info.type
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found.append(info.cls)
            for field in info.fields:
                visit(field.type)
        for inner in _inner(info):
            visit(inner)

    visit(msgspec.inspect.type_info(model.Configuration))
    return tuple(found)


def field_texts(struct: type[Struct]) -> dict[str, str]:
    """The docstring of each field of a struct, also of inherited fields."""
    texts: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if not issubclass(cls, Struct) or cls is Struct:
            continue
        body = _class_body(cls)
        for statement, following in pairwise(body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ) if name in struct.__struct_fields__:
                    texts[name] = inspect.cleandoc(text)
                case _:
                    pass
    return texts


def _class_body(cls: type[Struct]) -> list[ast.stmt]:
    (tree,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    return tree.body if isinstance(tree, ast.ClassDef) else []


def _inner(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    match info.type if isinstance(info, msgspec.inspect.Metadata) else info:
        case msgspec.inspect.ListType(item_type=item):
            return (item,)
        case msgspec.inspect.VarTupleType(item_type=item):
            return (item,)
        case msgspec.inspect.DictType(value_type=value):
            return (value,)
        case msgspec.inspect.UnionType(types=types):
            return tuple(types)
        case _:
            return ()


def _improve(struct: type[Struct], definition: Json) -> None:
    definition["description"] = inspect.cleandoc(struct.__doc__ or "")
    properties: dict[str, Json] = definition["properties"]
    for name, text in field_texts(struct).items():
        if name in properties:
            properties[name]["description"] = text
    for written in properties.values():
        if isinstance(written.get("default"), dict | list):
            del written["default"]


def _nullable(written: Json) -> Json:
    """The same schema, or null; the description stays at the top, where editors read it."""
    if "enum" in written:
        return {**written, "enum": [*written["enum"], None]}
    if isinstance(written.get("type"), str):
        return {**written, "type": [written["type"], "null"]}
    outer = {key: value for key, value in written.items() if key in {"description", "default"}}
    inner = {key: value for key, value in written.items() if key not in outer}
    options = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    return {**outer, "anyOf": [*options, {"type": "null"}]}


def _adjusted(defs: dict[str, Json], presets: list[str]) -> None:
    """Add variants for resources with a preset: no key is required, and null removes a key."""
    for struct in (model.Resource, *_ADJUSTABLE):
        definition = deepcopy(defs[struct.__name__])
        definition["title"] = f"Adjusted{struct.__name__}"
        definition["required"] = []
        for name, written in definition["properties"].items():
            reference = str(written.get("$ref", "")).rpartition("/")[2]
            if reference in {each.__name__ for each in _ADJUSTABLE}:
                written["$ref"] = f"#/$defs/Adjusted{reference}"
            values = written.get("additionalProperties")
            if isinstance(values, dict):
                written["additionalProperties"] = _nullable(values)
            definition["properties"][name] = _nullable(written)
        defs[definition["title"]] = definition
    adjusted = defs["AdjustedResource"]
    adjusted["description"] = "Resources of a preset, each merged with these keys."
    adjusted["required"] = [PRESET]
    adjusted["properties"] = {
        PRESET: {"enum": presets, "description": "The preset."},
        OF: {
            "type": "string",
            "minLength": 1,
            "description": "One resource of the preset, by the beginning of its name.",
        },
        **adjusted["properties"],
    }
    defs["Configuration"]["properties"]["resources"]["items"] = {
        "if": {"type": "object", "required": [PRESET]},
        "then": {"$ref": "#/$defs/AdjustedResource"},
        "else": {"$ref": "#/$defs/Resource"},
    }
