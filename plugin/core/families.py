"""Resources that devices name themselves: a plan whose name uses `device`, and the plans that come of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from plugin.core.device import Found
from plugin.core.errors import quoted
from plugin.core.names import resource_problem
from plugin.core.plan import ResourcePlan
from plugin.core.templates import TemplateError

MOST_MEMBERS: Final = 256
"""Resources of one family; the kubelet has a connection to each."""


@dataclass(frozen=True, slots=True)
class Members:
    """The plans by their names, in the order in which they were found; and (path or name, why) of devices
    that name none.
    """

    plans: Mapping[str, ResourcePlan]
    left_out: tuple[tuple[str, str], ...]


def members(family: ResourcePlan, found: Iterable[Found]) -> Members:
    """The resources that devices name. A device for which `match` does not hold names none.

    A name that the kubelet would refuse is told, and is nobody's.
    """
    if family.family is None:
        raise ValueError(f"{family.name} is no family")
    plans: dict[str, ResourcePlan] = {}
    left_out: list[tuple[str, str]] = []
    for item in found:
        variables = {"device": item}
        place = item.path or item.name
        try:
            if family.match is not None and not family.match.holds(variables):
                continue
            name = family.family.render(variables)
        except TemplateError as error:
            left_out.append((place, f"name: {error}"))
            continue
        problem = resource_problem(name)
        if problem is not None:
            left_out.append((place, f"its resource cannot have the name {quoted(name)}, {problem}"))
        elif name in plans or len(plans) < MOST_MEMBERS:
            plans.setdefault(name, replace(family, name=name, family=None, member_of=family.family))
        else:
            left_out.append((place, f"there are {MOST_MEMBERS} resources of its family already"))
    return Members(plans, tuple(left_out))
