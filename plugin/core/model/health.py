"""Probes: what must hold for a device to be healthy, and how often it is asked."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from plugin.core.model.common import Command, Duration, TemplateText, Texts


class FileProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A host file's content, white space at its ends left out, against one expectation or several."""

    path: TemplateText
    """Absolute path on the host."""
    equals: TemplateText | UnsetType = UNSET
    """What it must say."""
    one_of: Texts | UnsetType = UNSET
    """What it may say."""
    matches: str | UnsetType = UNSET
    """A regular expression that the whole content must match."""
    not_matches: str | UnsetType = UNSET
    """A regular expression that the whole content must not match."""
    at_least: float | UnsetType = UNSET
    """The least number that it may be."""
    at_most: float | UnsetType = UNSET
    """The largest number that it may be."""


class ExecProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the plugin's own image (or mounted into it) that must exit 0."""

    command: Command
    """The program, an absolute path, and its arguments; no shell is in between."""


class HttpProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A GET that must be answered with a status of `status` (by default 200 to 299)."""

    url: TemplateText
    """http or https, and the address."""
    status: Annotated[list[int], Meta(max_length=32)] | UnsetType = UNSET
    """Statuses that are well; 200 to 299 if left out."""


class XidProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA's XID events by NVML: a critical one is a fault until it has been quiet for `quiet`."""

    ignore: Annotated[tuple[int, ...], Meta(max_length=256)] = (13, 31, 43, 45, 68, 109)
    """Codes that are the application's own."""
    quiet: Duration = "5m"
    """How long a device stays unhealthy after the last event."""


class Probe(Struct, frozen=True, forbid_unknown_fields=True):
    """One probe: exactly one of exists, file, carrier, exec, http, xid; the rest says how it is asked."""

    exists: TemplateText | UnsetType = UNSET
    """A host path that must be there (`device`)."""
    file: FileProbe | UnsetType = UNSET
    """A host file's content."""
    carrier: TemplateText | UnsetType = UNSET
    """A network interface that must have a carrier; one in another namespace passes."""
    exec: ExecProbe | UnsetType = UNSET
    """A program that must exit 0."""
    http: HttpProbe | UnsetType = UNSET
    """An address that must answer."""
    xid: XidProbe | UnsetType = UNSET
    """NVIDIA's XID events."""
    interval: Duration | UnsetType = UNSET
    """How often it is asked. Left out: with each look at the host and when something happens to its path;
    every 10s where the kernel tells of no change (below /sys and /proc, carriers); every 30s for exec
    and http.
    """
    timeout: Duration | UnsetType = UNSET
    """A probe that has not answered by then has failed."""
    failures: Annotated[int, Meta(ge=1, le=100)] = 1
    """Failures in a row that make a device unhealthy."""
    successes: Annotated[int, Meta(ge=1, le=100)] = 1
    """Successes in a row that make it healthy again."""
    initial: bool | UnsetType = UNSET
    """Healthy until the first answer; left out: the first answer decides alone."""
