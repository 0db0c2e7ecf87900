"""All that readers show of each pod, as one object that stays the same while nothing of it changes.

As exporter.mapping.device_status for devices. Few readers want pods, so that a state does not carry them.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

from msgspec import Struct

from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import ClaimDevice, ClaimHolder, Container, Doubt, PodKey
from exporter.mapping.state import State


class HeldClaim(NamedTuple):
    """A claimed device, the container and the claim that hold it, and since when."""

    claim: ClaimDevice
    through: ClaimHolder
    since: HeldSince | None


class PodStatus(Struct, frozen=True):
    """A pod that holds something: its containers that do, its devices and claimed devices in their order, its
    identity if its uid is proven, and the doubt about its holdings after a kubelet restart.
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
    for device in state.devices:
        for holder in device.device.holders:
            held = devices[holder[:2]]
            if not held or held[-1] is not device:  # another container of the pod may hold it too
                held.append(device)
    claims: defaultdict[PodKey, list[HeldClaim]] = defaultdict(list)
    for claim in state.snapshot.claims:
        for through in claim.holders:
            since = state.since.get(Holding(claim.held(through), through.holder))
            claims[through.holder[:2]].append(HeldClaim(claim, through, since))
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
