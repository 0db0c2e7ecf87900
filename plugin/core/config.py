"""From a configuration file's text to the resources that it asks for, each template compiled."""

from collections.abc import Sequence

from plugin.core import model
from plugin.core.compile_resource import compile_resource
from plugin.core.errors import ConfigError, Path, quoted
from plugin.core.place import Place
from plugin.core.places import convert
from plugin.core.plan import ResourcePlan
from plugin.core.yaml_document import parse


def load(content: bytes, source: str) -> tuple[ResourcePlan, ...]:
    """The resources of a configuration file. Raises ConfigError for the first thing wrong in it."""
    document = parse(content, source)
    if not isinstance(document.root.value, dict):
        found = quoted(document.root.plain())
        raise document.error((), f"found {found}, expected a mapping with the keys version and resources")
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
                    source, None, (), f"found {quoted(plan.name)}, which {first[plan.name]} has too"
                )
            first[plan.name] = source
    return tuple(plan for _, plans in parts for plan in plans)
