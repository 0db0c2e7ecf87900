"""One look at everything that a resource wants to know of its host: devices, NUMA, health."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Final

from plugin.core.device import Device, Found
from plugin.core.identify import Identifier
from plugin.core.inventory import Sighting
from plugin.core.names import path_problem
from plugin.core.plan import ExistsCheck, ResourcePlan
from plugin.core.templates import TemplateError
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Source
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


@dataclass(frozen=True, slots=True)
class Resolved:
    """Devices as they are at this moment. `faults`: (id, why) of those that cannot be given."""

    devices: tuple[Device, ...]
    faults: tuple[tuple[str, str], ...]


class SurveyError(Exception):
    """A look that failed as a whole; the message says at what."""


class Surveyor:
    """Looks for one resource's devices. Blocking; one look at a time."""

    def __init__(self, plan: ResourcePlan, host: HostRoot) -> None:
        self.plan = plan
        self._host = host
        self._sources = tuple(source_of(written) for written in plan.sources)
        self._identifier = Identifier(plan)
        self._origins: dict[tuple[str, str], Source] = {}

    def look(self) -> Survey:
        """Everything as it is now. Raises SurveyError where a source cannot say."""
        found: list[Found] = []
        follow: dict[tuple[str, str], None] = {}
        notes: list[str] = []
        origins: dict[tuple[str, str], Source] = {}
        for source in self._sources:
            try:
                findings = source.discover(self._host)
            except OSError as error:
                raise SurveyError(os_problem(error)) from error
            found += findings.found
            if len(self._sources) > 1:
                for item in findings.found:
                    origins.setdefault((item.name, item.path), source)
            follow.update(dict.fromkeys(findings.follow))
            notes += findings.notes
        self._origins = origins
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

    def resolve(self, devices: Sequence[Device]) -> Resolved:
        """`devices` as they are at this moment, for Allocate.

        What discovery saw a moment ago may be gone, or have other nodes: Allocate asks again for what it
        hands out.
        """
        present: list[Device] = []
        faults: list[tuple[str, str]] = []
        for device in devices:
            now, reason = self._as_it_is(device)
            reason = reason or self._unhealthy(now, lambda _: None)
            if reason:
                faults.append((device.id, reason))
            else:
                present.append(now)
        return Resolved(tuple(present), tuple(faults))

    def _as_it_is(self, device: Device) -> tuple[Device, str]:
        """A device as its source finds it now, and why it is not there; empty where it is."""
        found = device.found
        if found is None:
            return device, self._absent(device.path) if device.path else ""
        source = self._origins.get((found.name, found.path), self._sources[0])
        try:
            now = source.resolve(self._host, found)
        except OSError as error:
            return device, os_problem(error)
        if now is None:
            return device, f"{device.path} is not there" if device.path else "not found any more"
        if now.absent:
            return device, now.absent
        if now is found or now == found:
            return device, ""
        return replace(device, path=now.path, attrs=dict(now.attrs), nodes=now.nodes, found=now), ""

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
