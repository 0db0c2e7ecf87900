"""From a configuration file's text to the resources that it asks for, each template compiled."""

from collections.abc import Mapping, Sequence
from typing import Final

from daemon.errors import ConfigError, Path, quoted
from daemon.yaml_document import parse
from plugin.core import model
from plugin.core.adjust import expand
from plugin.core.compile_resource import compile_resource
from plugin.core.place import Place
from plugin.core.places import convert
from plugin.core.plan import ResourcePlan
from plugin.presets import PRESETS

PRESET_SOURCE: Final = "preset "
"""How messages name a preset as a source: with its name behind it."""


def load(content: bytes, source: str, presets: Mapping[str, bytes] = PRESETS) -> tuple[ResourcePlan, ...]:
    """The resources of a configuration file, which `source` names in messages.

    Raises ConfigError for the first thing wrong in it.
    """
    document = parse(content, source)
    if not isinstance(document.root.value, dict):
        found = quoted(document.root.plain())
        raise document.error((), f"found {found}, expected a mapping with the keys version and resources")
    document = expand(document, presets)
    written = convert(document, model.Document)
    first: dict[str, int] = {}
    plans: list[ResourcePlan] = []
    for index, resource in enumerate(written.resources):
        path: Path = ("resources", index)
        plans.append(compile_resource(resource, Place(document, path)))
        if resource.name in first:
            line = document.line(("resources", first[resource.name], "name"))
            raise document.error(
                (*path, "name"),
                f"found {quoted(resource.name)} a second time, the first is on line {line}",
            )
        first[resource.name] = index
    return tuple(plans)


def combine(parts: Sequence[tuple[str, tuple[ResourcePlan, ...]]]) -> tuple[ResourcePlan, ...]:
    """The resources of several files, given as (source, resources).

    Raises ConfigError where two files ask for the same resource.
    """
    first: dict[str, str] = {}
    for source, plans in parts:
        for plan in plans:
            if plan.name in first:
                raise ConfigError(
                    source,
                    None,
                    (),
                    f"found {quoted(plan.name)}, which {first[plan.name]} has too{_adjusting(parts)}",
                )
            first[plan.name] = source
    return tuple(plan for _, plans in parts for plan in plans)


def _adjusting(parts: Sequence[tuple[str, tuple[ResourcePlan, ...]]]) -> str:
    """What to do who asks for a preset and for a file of their own at once."""
    presets = [source for source, _ in parts if source.startswith(PRESET_SOURCE)]
    if not presets or len(presets) == len(parts):
        return ""
    return ": to adjust a preset, begin a resource of the file with the key 'preset' instead"
