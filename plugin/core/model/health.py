"""Probes: what must hold for a device to be healthy, and how often it is asked."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from plugin.core.model.common import Command, Duration, TemplateText, Texts


class FileProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A host file's content, white space at its ends left out, against one expectation or several."""

    path: TemplateText
    equals: TemplateText | UnsetType = UNSET
    one_of: Texts | UnsetType = UNSET
    matches: str | UnsetType = UNSET
    """A regular expression that the whole content must match."""
    not_matches: str | UnsetType = UNSET
    at_least: float | UnsetType = UNSET
    at_most: float | UnsetType = UNSET


class ExecProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the plugin's own image (or mounted into it) that must exit 0."""

    command: Command


class HttpProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """A GET that must be answered with a status of `status` (by default 200 to 299)."""

    url: TemplateText
    status: Annotated[list[int], Meta(max_length=32)] | UnsetType = UNSET


class XidProbe(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA's XID events by NVML: a critical one is a fault until it has been quiet for `quiet`."""

    ignore: Annotated[tuple[int, ...], Meta(max_length=256)] = (13, 31, 43, 45, 68, 109)
    """Codes that are the application's own."""
    quiet: Duration = "5m"


class Probe(Struct, frozen=True, forbid_unknown_fields=True):
    """One probe: exactly one of exists, file, carrier, exec, http, xid; the rest says how it is asked."""

    exists: TemplateText | UnsetType = UNSET
    """A host path that must be there (`device`)."""
    file: FileProbe | UnsetType = UNSET
    carrier: TemplateText | UnsetType = UNSET
    """A network interface that must have a carrier; one in another namespace passes."""
    exec: ExecProbe | UnsetType = UNSET
    http: HttpProbe | UnsetType = UNSET
    xid: XidProbe | UnsetType = UNSET
    interval: Duration | UnsetType = UNSET
    timeout: Duration | UnsetType = UNSET
    """A probe that has not answered by then has failed."""
    failures: Annotated[int, Meta(ge=1, le=100)] = 1
    """Failures in a row that make a device unhealthy."""
    successes: Annotated[int, Meta(ge=1, le=100)] = 1
    """Successes in a row that make it healthy again."""
    initial: bool | UnsetType = UNSET
    """Healthy until the first answer; left out: the first answer decides alone."""
