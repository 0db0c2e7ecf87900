"""All that readers show of each pod, as one object that stays the same while nothing of it changes.

As exporter.mapping.device_status for devices. Few readers want pods, so that a state does not carry them.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct

from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.dra import PublishedName
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import ClaimHolding, Container, Doubt, PodKey
from exporter.mapping.state import State


class HeldClaim(NamedTuple):
    """A claimed device by its name, the container and the claim that hold it, and since when."""

    name: PublishedName
    through: ClaimHolding
    since: HeldSince | None


class PodStatus(Struct, frozen=True):
    """A pod that holds something: its containers that do, its devices in their order, the claims that hold
    some of them, its identity if its uid is proven, and the doubt about its holdings after a kubelet restart.
    """

    key: PodKey
    containers: tuple[Container, ...]
    devices: tuple[DeviceStatus, ...]
    claims: tuple[HeldClaim, ...]
    identity: PodIdentity | None
    doubt: Doubt | None


def pod_statuses(state: State, last: Mapping[PodKey, PodStatus]) -> dict[PodKey, PodStatus]:
    """The pods of `state`, sorted, with the objects of `last` where nothing changed."""
    devices: defaultdict[PodKey, list[DeviceStatus]] = defaultdict(list)
    claims: defaultdict[PodKey, list[HeldClaim]] = defaultdict(list)
    for one in state.devices:
        device = one.device
        for holder in device.holders:
            held = devices[holder[:2]]
            if not held or held[-1] is not one:  # another container of the pod may hold it too
                held.append(one)
        if device.claimed is not None:
            for through in device.claimed.through:
                if not through.admin:
                    since = state.since.get(Holding(device.key, through.holder))
                    claims[through.holder[:2]].append(HeldClaim(device.claimed.name, through, since))
    found: dict[PodKey, PodStatus] = {}
    for key, containers in groupby(state.snapshot.containers, key=_pod):
        doubt = state.snapshot.unconfirmed.get(key)
        holdings = tuple(devices.get(key, ())), tuple(claims.get(key, ()))
        status = PodStatus(key, tuple(containers), *holdings, state.pods.get(key), doubt)
        was = last.get(key)
        found[key] = was if was is not None and was == status else status
    return found


def _pod(container: Container) -> PodKey:
    return container.holder[:2]
