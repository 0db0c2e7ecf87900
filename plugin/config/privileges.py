"""What a configuration may use of the host beyond device nodes, and the flag --allow that restricts it.

Templates choose host paths, and programs run as the plugin's user, root: who can write a configuration that
uses these is root on the node.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from runtime.text import advice, quoted

if TYPE_CHECKING:  # the flags import this module, and --help answers without the language
    from plugin.config.model import Allocate, CdiSpec, Resource
    from plugin.fields import Place

EXEC: Final = "exec"
"""Programs: the source `exec`, the probe `exec`, and `pre_start`."""
HOST_MOUNTS: Final = "host-mounts"
"""Mounts of host paths, files written on the host, and CDI specifications in other than CDI's directories."""
PRIVILEGES: Final = (EXEC, HOST_MOUNTS)
NONE: Final = "none"
ALL: Final = frozenset(PRIVILEGES)

_CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi", "/run/cdi")


def parse_privileges(text: str) -> frozenset[str]:
    """The privileges in a comma-separated list. Raises ValueError."""
    if text.strip() == NONE:
        return frozenset()
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in ALL:
            hint = advice(word, PRIVILEGES)
            raise ValueError(
                f"found {quoted(word)}{hint}, expected {NONE}, or some of {','.join(PRIVILEGES)}"
            )
    return frozenset(words)


def forbidden(resource: "Resource", allowed: frozenset[str]) -> "tuple[Place, str] | None":
    """The first place below `resource` that uses a privilege which is not in `allowed`, and what is wrong."""
    for privilege, place in _used(resource):
        if privilege not in allowed:
            return place, f"found what needs the privilege {quoted(privilege)}, which --allow leaves out"
    return None


def _used(resource: "Resource") -> Iterator[tuple[str, "Place"]]:
    for index, source in enumerate(resource.discover):
        if source.exec is not UNSET:
            yield EXEC, ("discover", index, "exec")
    for index, probe in enumerate(resource.health):
        if probe.exec is not UNSET:
            yield EXEC, ("health", index, "exec")
    if resource.pre_start is not UNSET:
        yield EXEC, ("pre_start", "exec")
    yield from _mounted("allocate", resource.allocate)
    if resource.allocate.files:
        yield HOST_MOUNTS, ("allocate", "files", 0)
    if resource.cdi is not UNSET:
        yield from _mounted("cdi", resource.cdi)
        if resource.cdi.directory.rstrip("/") not in _CDI_DIRECTORIES:
            yield HOST_MOUNTS, ("cdi", "directory")


def _mounted(key: str, part: "Allocate | CdiSpec") -> Iterator[tuple[str, "Place"]]:
    if part.mounts:
        yield HOST_MOUNTS, (key, "mounts", 0)
