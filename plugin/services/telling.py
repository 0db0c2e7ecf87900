"""What the log is told of one resource's devices: each thing once, and when it is over."""

from collections.abc import Mapping, Sequence
from typing import Final

from daemon.log import Episode, Log
from plugin.core.device import natural
from plugin.core.inventory import Transition

MAX_TOLD: Final = 8
"""Devices that one log line names; the rest are counted."""

_log = Log("resource")


class Telling:
    """The log of one resource."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self.discovery = Episode(_log, "discovery fails", resource=resource)
        self.empty = Episode(_log, "no devices", resource=resource)
        self.defect = Episode(_log, "defect, beginning again", resource=resource)
        self._left_out = Episode(_log, "left out", resource=resource)
        self._claimed = Episode(_log, "devices of another resource", resource=resource)
        self._clashing = Episode(_log, "ids of another resource too", resource=resource)

    def transitions(self, transitions: Sequence[Transition]) -> None:
        """Devices that are new, and devices that are well, or not, from now on or from the beginning."""
        new = sorted((t.id for t in transitions if t.new), key=natural)
        if new:
            _log.info("devices found", resource=self._resource, devices=_several(new, ", "))
        changed = [t for t in transitions if not (t.new and t.healthy)]
        for transition in changed[:MAX_TOLD]:
            if transition.healthy:
                _log.info("device healthy", resource=self._resource, device=transition.id)
            else:
                _log.warn(
                    "device unhealthy",
                    resource=self._resource,
                    device=transition.id,
                    reason=transition.reason,
                )
        if len(changed) > MAX_TOLD:
            _log.info("more devices changed health", resource=self._resource, count=len(changed) - MAX_TOLD)

    def left_out(self, reasons: Sequence[tuple[str, str]]) -> None:
        """Devices, by path or name, that cannot be advertised, and why."""
        _tell(self._left_out, [f"{name}: {reason}" for name, reason in reasons])

    def claimed(self, others: Mapping[str, str]) -> None:
        """Devices that another resource found first, and which one."""
        _tell(self._claimed, [f"{device} ({other})" for device, other in sorted(others.items())])

    def clashes(self, clashes: Mapping[str, str]) -> None:
        """Ids that another resource has too, and which one."""
        told = [f"{device} ({other})" for device, other in sorted(clashes.items())]
        _tell(self._clashing, told, "the kubelet tells health by id alone: ")


def _tell(episode: Episode, reasons: Sequence[str], before: str = "") -> None:
    if reasons:
        episode.failed(before + _several(reasons, "; "))
    else:
        episode.recovered()


def _several(items: Sequence[str], between: str) -> str:
    more = f" and {len(items) - MAX_TOLD} more" if len(items) > MAX_TOLD else ""
    return between.join(items[:MAX_TOLD]) + more
