"""What can be said of a resource at this moment."""

from collections.abc import Callable
from dataclasses import dataclass

from plugin.core.inventory import Advertised, Inventory
from plugin.services.tally import Tally


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """One resource. `ready`: it is served, or waits for something that is said in `state`."""

    name: str
    registered: bool
    streams: int
    ready: bool
    state: str
    advertised: tuple[Advertised, ...]
    last_allocated: Callable[[str], float | None]
    tally: Tally


def assess(
    *,
    registered: bool,
    streams: int,
    stands_by: bool,
    registration_problem: str | None,
    surveyed: bool,
    wanted: bool,
    notes: str | None,
    discovery_problem: str | None,
    giving_problem: str | None,
    defect: str | None,
    inventory: Inventory,
) -> tuple[bool, str]:
    """Whether a resource is ready, and how it stands in words: the first of these that holds.

    `surveyed`: its devices have been looked for once; `wanted`: there was something to register;
    `notes`: why there is nothing; the problems: what fails at this moment, None where nothing does.
    """
    failing = f"discovery fails: {discovery_problem}" if discovery_problem else ""
    rules: tuple[tuple[bool, bool, str], ...] = (
        (giving_problem is not None, False, giving_problem or ""),
        (registered and streams > 0, True, _serving(inventory, streams, failing)),
        (not surveyed and defect is not None, False, f"defect: {defect}"),
        (not surveyed, False, failing or "looking for devices"),
        (not wanted, True, f"waiting for devices: {notes or 'none was found'}"),
        (stands_by, True, f"waiting: {registration_problem}"),
        (registered, False, "registered, but the kubelet has opened no stream"),
        (True, False, registration_problem or "registering"),
    )
    return next((ready, text) for holds, ready, text in rules if holds)


def _serving(inventory: Inventory, streams: int, failing: str) -> str:
    devices = inventory.devices.values()
    healthy = sum(known.healthy for known in devices)
    text = f"registered, streams open: {streams}, devices healthy: {healthy} of {len(devices)}"
    return f"{text}; {failing}" if failing else text
