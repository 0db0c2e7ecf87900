"""From configuration files' texts to the resources that they ask for, each template compiled."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from daemon import places
from daemon.errors import Path, quoted
from daemon.yaml_document import Document, parse
from plugin.core import model
from plugin.core.adjust import OF, PRESET, expand
from plugin.core.compile_resource import compile_resource
from plugin.core.place import Place
from plugin.core.plan import ResourcePlan
from plugin.presets import PRESETS

PRESET_SOURCE: Final = "preset "
"""How messages name a preset that is a source of its own: with its name behind it."""

_EXPANDED: Final[places.Planned] = {model.Resource: frozenset({PRESET, OF})}
"""Keys that are gone when a document is decoded, and are what a mistyped one may have meant."""


def load(content: bytes, source: str, presets: Mapping[str, bytes] = PRESETS) -> tuple[ResourcePlan, ...]:
    """The resources of a configuration file, which `source` names in messages.

    Raises ConfigError for the first thing wrong in it.
    """
    return load_all([(source, content)], presets)


def load_all(
    files: Sequence[tuple[str, bytes]], presets: Mapping[str, bytes] = PRESETS
) -> tuple[ResourcePlan, ...]:
    """The resources of several files together, given as (source, content).

    Raises ConfigError for the first thing wrong in them, such as a resource that two of them ask for.
    """
    first: dict[str, tuple[str, int]] = {}
    plans: list[ResourcePlan] = []
    for source, content in files:
        for plan, document, path in _resources(content, source, presets):
            if plan.name in first:
                raise document.error(path, _twice(plan.name, source, *first[plan.name]))
            rival = next((other for other in plans if _same_devices(plan, other)), None)
            if rival is not None:
                raise document.error(path, _starved(rival.name, source, *first[rival.name]))
            first[plan.name] = source, document.line(path)
            plans.append(plan)
    return tuple(plans)


def decoded(document: Document) -> model.Document:
    """An expanded document as the model has it. Raises ConfigError where it does not fit."""
    return places.convert(document, model.Document, _EXPANDED)


def _resources(
    content: bytes, source: str, presets: Mapping[str, bytes]
) -> Iterator[tuple[ResourcePlan, Document, Path]]:
    """The resources of one file, each with the place of its name."""
    document = parse(content, source)
    if not isinstance(document.root.value, dict):
        found = quoted(document.root.plain())
        raise document.error((), f"found {found}, expected a mapping with the keys version and resources")
    document = expand(document, presets)
    for index, resource in enumerate(decoded(document).resources):
        path: Path = ("resources", index)
        yield compile_resource(resource, Place(document, path)), document, (*path, "name")


def _same_devices(plan: ResourcePlan, earlier: ResourcePlan) -> bool:
    """Whether an earlier resource keeps every device that this one could ever find.

    Devices that are written down or printed by a program may be nothing that can be told apart.
    """
    return (
        plan.exclusive
        and earlier.exclusive
        and plan.family is None
        and earlier.family is None
        and (plan.sources, plan.match) == (earlier.sources, earlier.match)
        and not any(isinstance(source, model.Static | model.Exec) for source in plan.sources)
    )


def _starved(name: str, source: str, first_source: str, first_line: int) -> str:
    place = f"on line {first_line}" if source == first_source else f"in {first_source}:{first_line}"
    return (
        f"would find what {quoted(name)} {place} finds, which keeps it: expected another match, or "
        "exclusive: false"
    )


def _twice(name: str, source: str, first_source: str, first_line: int) -> str:
    if source == first_source:
        return f"found {quoted(name)} a second time, the first is on line {first_line}"
    is_preset = [each.startswith(PRESET_SOURCE) for each in (source, first_source)]
    place = first_source if is_preset[1] else f"{first_source}:{first_line}"
    hint = ": begin the file's resource with the key 'preset' to adjust a preset" if any(is_preset) else ""
    return f"found {quoted(name)}, which {place} has too{'' if all(is_preset) else hint}"
