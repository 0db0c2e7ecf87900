"""One resource: its parts compiled, and what contradicts itself across them refused."""

from dataclasses import replace
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from plugin.core import model, names
from plugin.core.attributes import attributes_of
from plugin.core.compile_giving import compile_allocate, compile_cdi, compile_pre_start
from plugin.core.compile_health import compile_probes
from plugin.core.compile_source import compile_sources
from plugin.core.errors import quoted
from plugin.core.place import FOUND, Place
from plugin.core.plan import ResourcePlan
from plugin.core.templates import FOUND_FIELDS, Template

REPLICA: Final = frozenset({"id", "n"})


def compile_resource(written: model.Resource, place: Place) -> ResourcePlan:
    """The plan of the resource that is written at `place`. Raises ConfigError."""
    sources = compile_sources(written.discover, place.at("discover"))
    place = replace(place, attributes=attributes_of(sources))
    family = _family(written.name, place.at("name"))
    name = (
        written.name if family is not None else place.at("name").check(written.name, names.resource_problem)
    )
    place = replace(place, resource=None if family is not None else name)
    numa = _numa(written.numa, place.at("numa"))
    if numa == "off" and written.prefer == "numa":
        raise place.at("prefer").error("found 'numa' with numa off: no device would have a NUMA node")
    if family is not None and written.advertise_empty:
        raise place.at("advertise_empty").error(
            "found true, but only devices tell the names of resources here"
        )
    share = written.share
    return ResourcePlan(
        name=name,
        sources=sources,
        family=family,
        match=_condition(written.match, place.at("match")),
        id=_id(written.id, place.at("id")),
        numa=numa,
        replicas=None if share.replicas is UNSET else share.replicas,
        replica_id=_replica_id(share, place.at("share")),
        first_replica=share.first,
        max_per_container=None if share.max_per_container is UNSET else share.max_per_container,
        probes=compile_probes(written.health, sources, place.at("health")),
        prefer=written.prefer,
        allocate=compile_allocate(written.allocate, place.at("allocate")),
        cdi=None if written.cdi is UNSET else compile_cdi(written.cdi, place.at("cdi")),
        pre_start=None
        if written.pre_start is UNSET
        else compile_pre_start(written.pre_start, place.at("pre_start")),
        exclusive=written.exclusive,
        advertise_empty=written.advertise_empty,
    )


def _family(name: str, place: Place) -> Template | None:
    """The name's template where devices name their resources; None for a name as it is."""
    if "{" not in name:
        return None
    template = place.template(name, FOUND, fields=FOUND_FIELDS)
    if "device" not in template.uses:
        raise place.error(f"found {quoted(name)}, expected a name, or a template that uses device")
    before = name.partition("{")[0]
    if "/" in before:
        place.check(before.partition("/")[0] + "/x", names.resource_problem)
    return template


def _condition(text: str | UnsetType, place: Place) -> Template | None:
    return None if text is UNSET else place.template(text, FOUND, _condition_problem, FOUND_FIELDS)


def _condition_problem(text: str) -> str | None:
    if text.strip().lower() in {"true", "false"}:
        return None
    return "expected a condition such as {{ device.name == 'video0' }}"


def _id(text: str | UnsetType, place: Place) -> Template | None:
    return None if text is UNSET else place.template(text, FOUND, names.id_problem, FOUND_FIELDS)


def _replica_id(share: model.Share, place: Place) -> Template | None:
    if share.replicas is UNSET:
        for key in ("id", "first"):
            if getattr(share, key):
                raise place.at(key).error(f"found {key} without replicas, which it is about")
        return None
    if share.id is UNSET:
        return None
    template = place.at("id").template(share.id, REPLICA, names.id_problem)
    if "n" not in template.uses and share.replicas > 1:
        raise place.at("id").error("does not use n: all replicas of a device would have the same id")
    return template


def _numa(value: str | bool | int, place: Place) -> Literal["auto", "off"] | int:  # noqa: FBT001 -- as it is written
    match value:
        case "auto" | "off":
            return "auto" if value == "auto" else "off"
        case False:  # what other YAML tools make of `off`
            return "off"
        case int() if not isinstance(value, bool) and 0 <= value <= 1023:
            return value
        case _:
            raise place.error(f"found {quoted(value)}, expected auto, off, or a node's number from 0 to 1023")
