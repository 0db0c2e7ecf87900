"""One device of a fleet explained, as far as its exporter's series tell."""

from typing import Final

import msgspec

from exporter.cli.prometheus.client import Prometheus
from exporter.cli.prometheus.fleet import Fleet, Scope, moment, survey
from exporter.cli.select import placed
from exporter.mapping.device_ids import read_id
from exporter.views.documents import explained as explained_of_node
from exporter.views.explain import NO_PLUGIN, AmbiguousDevice, UnknownDevice
from exporter.views.schema import ExplainDocument
from exporter.views.wording import listed

_NOT_TOLD: Final = (
    "What its plugin tells is not among the exporter's series: ask the exporter of {node} (--url)."
)
_NAMED: Final = 5


class Several(ValueError):  # noqa: N818 -- a wrong use
    """Several devices, or one of several nodes, may be meant."""


class Unknown(Exception):  # noqa: N818 -- an answer, not a failure
    """There is no such device."""


def explained(
    prometheus: Prometheus, scope: Scope, device: str, resource: str, at: float | None
) -> tuple[ExplainDocument, tuple[str, ...]]:
    """The device that is asked for, now or at unix time `at`, and notes.

    Raises Several, Unknown and AskError.
    """
    fleet = survey(prometheus, scope, at)
    found: list[tuple[str, ExplainDocument]] = []
    several: list[str] = []
    unknown: list[str] = []
    for node, place in fleet.nodes:
        name = placed(node.name, place)
        try:
            found.append((name, explained_of_node(moment(node, fleet.now), device, resource, reader=read_id)))
        except AmbiguousDevice as error:
            several.append(f"{name}: {error}")
        except UnknownDevice as error:
            unknown.append(str(error))
    exact = [one for one in found if one[1].device == device]
    if exact:
        found, several = exact, []
    if len(found) == 1 and not several:
        name, document = found[0]
        sentences = tuple(
            _NOT_TOLD.format(node=name) if sentence == NO_PLUGIN else sentence
            for sentence in document.sentences
        )
        return msgspec.structs.replace(document, sentences=sentences), fleet.notes
    if several and not found:
        raise Several("; ".join(several[:_NAMED]))
    if found:
        names = [name for name, _ in found] + [one.partition(":")[0] for one in several]
        raise Several(f"{device!r} is on {listed(names, _NAMED)}: say which with --node, or --selector")
    raise Unknown(_nowhere(fleet, device, unknown))


def _nowhere(fleet: Fleet, device: str, unknown: list[str]) -> str:
    if len(unknown) == 1:
        return unknown[0].replace("this node", fleet.nodes[0][0].name)
    return f"no device {device!r} on any of {len(fleet.nodes)} nodes"
