"""Claims that drivers have prepared for pods of a node, and how PodResources lists them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubelet.pb.podresources.v1 import api_pb2 as v1
from simulator.model import ContainerSpec, Pod


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device as the driver answered it."""

    pool: str
    device: str
    cdi: tuple[str, ...]
    share_id: str | None
    requests: tuple[str, ...]


@dataclass(slots=True)
class ClaimInfo:
    """A claim that pods of this node use (kubelet: ClaimInfo in dra_manager_state)."""

    namespace: str
    name: str
    uid: str
    devices: dict[str, list[PreparedDevice]]
    """By driver."""
    pods: set[str] = field(default_factory=set[str])
    prepared: bool = False


ClaimInfos = dict[tuple[str, str], ClaimInfo]
"""By namespace and name."""


def claim_names(pod: Pod) -> list[str]:
    """The names of the pod's claims that exist, the one for extended resources last."""
    extended = [pod.extended.claim] if pod.extended is not None else []
    return [*named_claims(pod).values(), *extended]


def named_claims(pod: Pod) -> dict[str, str]:
    """The names of the claims that the pod's spec names, by its name for each."""
    return {
        one.name: name
        for one in pod.spec.resource_claims
        if (name := one.claim or pod.generated_claims.get(one.name, ""))
    }


def listed(
    claims: Mapping[tuple[str, str], ClaimInfo], pod: Pod, container: ContainerSpec
) -> list[v1.DynamicResource]:
    """A container's claims in List (kubelet: GetDynamicResources).

    A claim is listed whole, whichever request the container uses; one that is not prepared has no devices;
    one that the kubelet has not taken on hides all claims of the container.
    """
    wanted = {ref.name for ref in container.claim_refs}
    names = [name for reference, name in named_claims(pod).items() if reference in wanted]
    if pod.extended is not None and any(one.container == container.name for one in pod.extended.requests):
        names.append(pod.extended.claim)
    infos = [claims.get((pod.spec.namespace, name)) for name in names]
    return [_message(info) for info in infos if info is not None] if all(infos) else []


def _message(info: ClaimInfo) -> v1.DynamicResource:
    message = v1.DynamicResource(claim_name=info.name, claim_namespace=info.namespace)
    for driver, devices in info.devices.items():
        # kubelet: the list of CDI names goes on growing from device to device of one driver.
        cdi: list[v1.CDIDevice] = []
        for device in devices:
            cdi += [v1.CDIDevice(name=name) for name in device.cdi]
            message.claim_resources.add(
                cdi_devices=cdi,
                driver_name=driver,
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id,
            )
    return message
