"""The configuration language but for its sources: every mapping, key, default and limit.

Docstrings of structs and fields become the reference and the JSON Schema. A struct's `problems` are what the
decoder cannot find.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, structs

from plugin.discovery.registry import Source
from plugin.discovery.source import SourceConfig
from plugin.fields import (
    Command,
    ConfigStruct,
    Duration,
    HostPath,
    Problem,
    Regex,
    TemplatePath,
    TemplateText,
    Texts,
    duration_problem,
)
from plugin.names import Check, cdi_kind_problem, matching, permissions_problem
from runtime.text import parse_duration, quoted

_VARIABLES: Final = Meta(max_length=256, extra_json_schema={"propertyNames": {"pattern": r"^[A-Za-z_]|\{"}})
_CONTENT: Final = ("equals", "one_of", "matches", "not_matches", "at_least", "at_most")


def _numbered(least: int, most: int, expected: str) -> Check:
    return lambda number: None if least <= int(number) <= most else f"expected {expected}"


class FileProbe(ConfigStruct, frozen=True):
    """The content of a host file, without surrounding white space, meets all given conditions."""

    path: TemplatePath
    """Absolute path on the host."""
    equals: TemplateText | UnsetType = UNSET
    """The expected text."""
    one_of: Texts | UnsetType = UNSET
    """Possible texts."""
    matches: Regex | UnsetType = UNSET
    """A regular expression that the whole content matches."""
    not_matches: Regex | UnsetType = UNSET
    """A regular expression that the whole content does not match."""
    at_least: float | UnsetType = UNSET
    """The smallest allowed number."""
    at_most: float | UnsetType = UNSET
    """The largest allowed number."""

    def contradictions(self) -> Iterator[Problem]:
        if all(getattr(self, key) is UNSET for key in _CONTENT):
            yield (), f"found no expectation, expected one of {', '.join(_CONTENT)} (or the probe exists)"
        if self.equals is not UNSET and self.one_of is not UNSET:
            yield ("one_of",), "found equals and one_of, expected one of them"
        if self.one_of == []:
            yield ("one_of",), "found an empty list, which no content satisfies"
        least, most = self.at_least, self.at_most
        for key, value in (("at_least", least), ("at_most", most)):
            if value is not UNSET and not math.isfinite(value):
                yield (key,), f"found {value}, expected a finite number"
        if least is not UNSET and most is not UNSET and least > most:
            yield ("at_most",), f"found {most:g}, expected at least {least:g}, at_least's value"


class ExecProbe(ConfigStruct, frozen=True):
    """A program of the plugin's image, or of a mount, exits with 0."""

    command: Command
    """The program, an absolute path, and its arguments; there is no shell."""


class HttpProbe(ConfigStruct, frozen=True):
    """A GET is answered with one of the statuses."""

    url: Annotated[TemplateText, Meta(extra_json_schema={"pattern": "^(https?://|h?t?t?p?s?:?/?/?\\{)"})]
    """An http or https URL."""
    status: (
        Annotated[
            list[Annotated[int, Meta(extra={"check": _numbered(100, 599, "a status from 100 to 599")})]],
            Meta(max_length=32),
        ]
        | UnsetType
    ) = UNSET
    """Statuses of a healthy device; 200 to 299 by default."""

    def contradictions(self) -> Iterator[Problem]:
        if self.status == []:
            yield ("status",), "found an empty list, which no answer satisfies"


class XidProbe(ConfigStruct, frozen=True):
    """NVIDIA's XID events by NVML: a critical event is a fault until `quiet` has passed since the last."""

    ignore: Annotated[
        tuple[
            Annotated[int, Meta(extra={"check": _numbered(0, (1 << 32) - 1, "an XID: a number from 0")})],
            ...,
        ],
        Meta(max_length=256),
    ] = (13, 31, 43, 45, 68, 109)
    """Codes that an application causes."""
    quiet: Annotated[Duration, Meta(extra={"check": duration_problem("1s", "1w")})] = "5m"
    """How long a device stays unhealthy after the last event."""


class Probe(ConfigStruct, frozen=True):
    """One probe: exactly one of exists, file, carrier, exec, http and xid, and how often it runs."""

    exists: TemplatePath | UnsetType = UNSET
    """A host path that must exist (`device`)."""
    file: FileProbe | UnsetType = UNSET
    """The content of a host file."""
    carrier: TemplateText | UnsetType = UNSET
    """A network interface that must have a carrier. One in another network namespace passes."""
    exec: ExecProbe | UnsetType = UNSET
    """A program that must exit with 0."""
    http: HttpProbe | UnsetType = UNSET
    """A URL that must answer."""
    xid: XidProbe | UnsetType = UNSET
    """NVIDIA's XID events."""
    interval: Annotated[Duration, Meta(extra={"check": duration_problem("100ms", "1d")})] | UnsetType = UNSET
    """Time between two runs. By default: with each scan and each event of its path; every 10s where the
    kernel has no events (/sys, /proc, carriers); every 30s for exec and http.
    """
    timeout: Annotated[Duration, Meta(extra={"check": duration_problem("10ms", "5m")})] | UnsetType = UNSET
    """A probe without a result by then has failed; 5s by default, the interval at most."""
    failures: Annotated[int, Meta(ge=1, le=100)] = 1
    """Failures in a row that make a device unhealthy."""
    successes: Annotated[int, Meta(ge=1, le=100)] = 1
    """Successes in a row that make it healthy again."""
    initial: bool | UnsetType = UNSET
    """The health before `failures` or `successes` results; by default the first result decides."""

    def kind(self) -> str:
        """The key of its kind. Valid probes have one."""
        return next(kind for kind in PROBE_KINDS if getattr(self, kind) is not UNSET)

    def contradictions(self) -> Iterator[Problem]:
        given = [kind for kind in PROBE_KINDS if getattr(self, kind) is not UNSET]
        if len(given) != 1:
            found = " and ".join(given) or "no probe"
            yield (), f"found {found}, expected exactly one of {', '.join(PROBE_KINDS)}"
        elif given == ["xid"]:
            schedule = ("interval", "timeout", "failures", "successes", "initial")
            defaults = {field.name: field.default for field in structs.fields(Probe)}
            for key in schedule:
                if getattr(self, key) != defaults[key]:
                    yield (key,), f"found {key} beside xid, which is reported by events and never polled"
        if self.timeout is not UNSET:
            yield from self._too_long(self.timeout)

    def _too_long(self, timeout: str) -> Iterator[Problem]:
        interval = None if self.interval is UNSET else parse_duration(self.interval)
        if interval is None and parse_duration(timeout) > 30.0:
            yield ("timeout",), f"found '{timeout}', expected at most 30s, or an interval that is as long"
        if interval is not None and parse_duration(timeout) > interval:
            yield ("timeout",), f"found '{timeout}', expected at most the interval, {interval:g}s"


PROBE_KINDS: Final = ("exists", "file", "carrier", "exec", "http", "xid")


class DeviceNode(ConfigStruct, frozen=True):
    """A device node of a container. A template that uses `device` makes one node for each device, a template
    that uses `node` one for each of its `device.nodes`.
    """

    host: TemplatePath
    """Absolute path on the host."""
    container: TemplatePath | UnsetType = UNSET
    """Path in the container; by default the host path."""
    permissions: Annotated[
        str,
        Meta(
            extra={"check": permissions_problem},
            extra_json_schema={"pattern": "^[rwm]{1,3}$", "examples": ["r", "rw", "rwm"]},
        ),
    ] = "rw"
    """Some of `r` (read), `w` (write) and `m` (mknod)."""
    optional: bool = False
    """Leave it out if the host has no such node."""


class MountPoint(ConfigStruct, frozen=True):
    """A mount of a container. A template that uses `device` makes one mount for each device."""

    host: TemplatePath
    """Absolute path on the host."""
    container: TemplatePath | UnsetType = UNSET
    """Path in the container; by default the host path."""
    read_only: bool = False
    """Whether the container may only read."""
    create: Literal["directory", "file"] | UnsetType = UNSET
    """What Allocate creates at the host path if nothing is there."""
    optional: bool = False
    """Leave it out if nothing is there."""

    def contradictions(self) -> Iterator[Problem]:
        if self.create is not UNSET and self.optional:
            yield ("optional",), "found optional beside create: a created path is always there"


class SideFile(ConfigStruct, frozen=True):
    """A file that Allocate writes on the host and mounts read-only into the container."""

    host: TemplatePath
    """Absolute path on the host; different contents need different paths."""
    container: TemplatePath
    """Absolute path in the container."""
    content: TemplateText
    """The content."""
    mode: Annotated[
        str,
        Meta(
            extra={"check": matching("0?[0-7]{3}", "three octal digits such as '0444'")},
            extra_json_schema={"pattern": "^0?[0-7]{3}$"},
        ),
    ] = "0444"
    """Its permissions: three octal digits."""


class Allocate(ConfigStruct, frozen=True):
    """What a container gets."""

    env: Annotated[dict[str, TemplateText], _VARIABLES] = {}
    """Environment variables."""
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    """Device nodes."""
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    """Directories and files of the host."""
    files: Annotated[list[SideFile], Meta(max_length=64)] = []
    """Files written for the container."""
    annotations: Annotated[dict[str, TemplateText], Meta(max_length=256)] = {}
    """Annotations for the container runtime."""
    cdi: Annotated[list[TemplateText], Meta(max_length=256)] = []
    """CDI devices by the names in a specification on the host: `vendor.example/class=name`."""


class CdiSpec(ConfigStruct, frozen=True):
    """A CDI specification that the plugin writes for the resource's devices; Allocate refers to it."""

    kind: Annotated[
        str,
        Meta(extra={"check": cdi_kind_problem}, extra_json_schema={"pattern": "^[A-Za-z].*/[A-Za-z]"}),
    ]
    """VENDOR/CLASS"""
    name: TemplateText = "{{ device.id }}"
    """The name of a device in the specification."""
    directory: HostPath = "/var/run/cdi"
    """The host directory of CDI specifications."""
    env: Annotated[dict[str, TemplateText], _VARIABLES] = {}
    """Environment variables."""
    devices: Annotated[list[DeviceNode], Meta(max_length=256)] = []
    """Device nodes."""
    mounts: Annotated[list[MountPoint], Meta(max_length=256)] = []
    """Directories and files of the host."""

    def contradictions(self) -> Iterator[Problem]:
        if not (self.env or self.devices or self.mounts):
            yield (), "gives containers nothing, expected env, devices or mounts"


class PreStart(ConfigStruct, frozen=True):
    """A program that runs before a container starts, once for each device if it uses `device`."""

    exec: Command
    """The program, an absolute path, and its arguments; there is no shell."""
    timeout: Annotated[Duration, Meta(extra={"check": duration_problem("10ms", "28s")})] = "20s"
    """The program is killed then, and the container does not start; at most 28s."""


class Share(ConfigStruct, frozen=True):
    """Each device is advertised several times, as `id::0`, `id::1`, …"""

    replicas: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    """Ids of each device; by default one, the device's own."""
    max_per_container: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    """More devices in one container are refused."""
    id: str | UnsetType = UNSET
    """The id of a share, of `id` (the device's) and `n`; `{{ id }}::{{ n }}` by default."""
    first: Literal[0, 1] = 0
    """The number of the first share."""

    def contradictions(self) -> Iterator[Problem]:
        for key in ("id", "first"):
            if self.replicas is UNSET and getattr(self, key):
                yield (key,), f"found {key} without replicas, which it is about"


class Resource(ConfigStruct, frozen=True):
    """One extended resource, or several if its name uses `device`.

    In `name`, `match` and `id`, `device` has no id and no NUMA nodes yet.
    """

    name: Annotated[
        TemplateText,
        Meta(
            extra_json_schema={
                "pattern": r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9]|\{",
                "examples": ["example.com/camera"],
            }
        ),
    ]
    """DOMAIN/NAME. A template that uses `device` makes a resource for each resulting name."""
    discover: Annotated[list[Source], Meta(min_length=1, max_length=64)]
    """The sources of its devices."""
    match: TemplateText | UnsetType = UNSET
    """Keeps devices for which the template renders as true."""
    id: TemplateText | UnsetType = UNSET
    """The device id; the device's name by default."""
    numa: str | int | bool = "auto"
    """`auto` (from sysfs), `off`, or the NUMA node of every device."""
    share: Share = Share()
    """Devices for several containers."""
    health: Annotated[list[Probe], Meta(max_length=64)] = []
    """Probes, all of which must pass."""
    prefer: Literal["none", "packed", "spread", "numa", "topology"] = "none"
    """Preferred free devices: best connected by links, PCI switches, and NUMA nodes (`topology`), of one
    NUMA node (`numa`), of physical devices in use (`packed`), or of the least used ones (`spread`).
    """
    allocate: Allocate = Allocate()
    """What a container gets."""
    cdi: CdiSpec | UnsetType = UNSET
    """A CDI specification to write."""
    pre_start: PreStart | UnsetType = UNSET
    """A program to run before a container starts."""
    exclusive: bool = True
    """Leave devices to the first exclusive resource that finds them."""
    advertise_empty: bool = False
    """Register without devices."""

    def sources(self) -> tuple[SourceConfig, ...]:
        """The configured sources. A valid item has one."""
        return tuple(config for item in self.discover for config in item.configured().values())

    def numa_node(self) -> Literal["auto", "off"] | int | None:
        """The value of `numa`; None if it is not valid."""
        match self.numa:
            case "auto" | "off":
                return "auto" if self.numa == "auto" else "off"
            case False:  # other YAML tools write `off` so
                return "off"
            case int() if not isinstance(self.numa, bool) and 0 <= self.numa <= 1023:
                return self.numa
            case _:
                return None

    def contradictions(self) -> Iterator[Problem]:
        for index, item in enumerate(self.discover):
            given = item.configured()
            if len(given) != 1:
                found = " and ".join(given) or "no source"
                names = ", ".join(Source.__struct_fields__)
                yield ("discover", index), f"found {found}, expected exactly one of {names}"
            if item in self.discover[:index]:
                yield ("discover", index), f"found what item {self.discover.index(item)} is already"
        numa = self.numa_node()
        if numa is None:
            expected = "auto, off, or a node's number from 0 to 1023"
            yield ("numa",), f"found {quoted(self.numa)}, expected {expected}"
        if numa == "off" and self.prefer == "numa":
            yield ("prefer",), "found 'numa' with numa off: no device would have a NUMA node"
        for index, probe in enumerate(self.health):
            if probe.xid is not UNSET and not any(source.reports_faults for source in self.sources()):
                problem = "found xid for devices of other sources, expected nvidia in discover"
                yield ("health", index, "xid"), problem


class Configuration(ConfigStruct, frozen=True):
    """A whole configuration file."""

    version: Literal[1]
    """The version of this language."""
    resources: Annotated[list[Resource], Meta(min_length=1, max_length=256)]
    """What the plugin serves."""
