"""One look at everything that a resource wants to know of its host: devices, NUMA, health."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Final

from plugin.core.device import Device, Found
from plugin.core.identify import Identifier
from plugin.core.inventory import Sighting
from plugin.core.names import path_problem
from plugin.core.plan import ExistsCheck, ResourcePlan
from plugin.core.templates import TemplateError
from plugin.discovery.host import HostRoot
from plugin.discovery.sources import source_of
from plugin.discovery.topology import numa_nodes

MAX_FOLLOWED: Final = 256
"""Directories followed for one resource; what changes elsewhere is seen at the next rescan."""
MAX_PATTERNS: Final = 32
"""Patterns of one directory; of more, every change in it calls for a look."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look saw. `left_out`: (path or name, why) of what cannot be a device.

    `follow`: host directories, with patterns of the entries, whose changes call for another look.
    """

    sightings: tuple[Sighting, ...]
    left_out: tuple[tuple[str, str], ...]
    follow: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


class SurveyError(Exception):
    """A look that failed as a whole; the message says at what."""


class Surveyor:
    """Looks for one resource's devices. Blocking; one look at a time."""

    def __init__(self, plan: ResourcePlan, host: HostRoot) -> None:
        self.plan = plan
        self._host = host
        self._sources = tuple(source_of(written) for written in plan.sources)
        self._identifier = Identifier(plan)

    def look(self) -> Survey:
        """Everything as it is now. Raises SurveyError where a source cannot say."""
        found: list[Found] = []
        follow: dict[tuple[str, str], None] = {}
        notes: list[str] = []
        for source in self._sources:
            try:
                findings = source.discover(self._host)
            except OSError as error:
                raise SurveyError(os_problem(error)) from error
            found += findings.found
            follow.update(dict.fromkeys(findings.follow))
            notes += findings.notes
        identity = self._identifier.identify(found, lambda item: numa_nodes(self._host, item))
        probed: set[str] = set()
        sightings = tuple(
            Sighting(item.device, item.absent or self._unhealthy(item.device, probed.add))
            for item in identity.devices
        )
        for path in sorted(probed):
            parent, _, name = path.rstrip("/").rpartition("/")
            follow[parent or "/", escape(name)] = None
        return Survey(sightings, identity.left_out, _bounded(follow), tuple(notes))

    def recheck(self, devices: Sequence[Device]) -> list[tuple[str, str]]:
        """(id, why) of those of `devices` that are not there or not healthy at this moment.

        What discovery saw a moment ago may be gone: Allocate asks again for what it hands out.
        """
        faults: list[tuple[str, str]] = []
        for device in devices:
            reason = self._absent(device.path) if device.path else ""
            reason = reason or self._unhealthy(device, lambda _: None)
            if reason:
                faults.append((device.id, reason))
        return faults

    def _unhealthy(self, device: Device, probed: Callable[[str], None]) -> str:
        """Why a device is unhealthy by its probes; empty where it is healthy."""
        for probe in self.plan.probes:
            if not isinstance(probe.check, ExistsCheck):
                continue
            try:
                path = probe.check.path.render({"device": device})
            except TemplateError as error:
                return f"{probe.place}: {error}"
            problem = path_problem(path)
            if problem is not None:
                return f"{probe.place}: {problem}"
            probed(path)
            reason = self._absent(path)
            if reason:
                return reason
        return ""

    def _absent(self, path: str) -> str:
        try:
            return "" if self._host.exists(path) else f"{path} is not there"
        except OSError as error:
            return os_problem(error)


def _bounded(follow: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """At most MAX_FOLLOWED directories, each with few patterns: many of them become one `*`."""
    patterns: dict[str, list[str]] = {}
    for directory, pattern in follow:
        if directory in patterns or len(patterns) < MAX_FOLLOWED:
            patterns.setdefault(directory, []).append(pattern)
    return tuple(
        (directory, pattern)
        for directory, several in patterns.items()
        for pattern in (several if len(several) <= MAX_PATTERNS else ["*"])
    )


def os_problem(error: OSError) -> str:
    """An OSError in words: what failed, and where."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
