"""Devices that pods hold through claims of every kind, compared with the API's objects and the kubelet's List
while the kubelet, the driver and the API server come and go: an exporter that reads slices, claims and pods,
and one beside it that reads List alone.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from harness import owners
from harness.claimed import Dra, dra, free, offered, tainted, uses
from harness.processes import Process
from harness.trials.owners_check import owner_of
from harness.truth import Claimed, Owner, claims_of, owners_of
from harness.waiting import until
from simulator import ClaimRef, ContainerSpec, PodClaim, PodSpec, SimulatedKubelet
from simulator.apiserver import ApiFaults
from simulator.dra_objects import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    claim,
    claim_template,
    device,
    device_class,
    request,
    taint,
)

DRIVER, EXTENDED = "gpu.example.com", "example.com/gpu"
SICK, TAINTED = "gpu-0", "gpu-6"
DEVICES = [
    *[
        device(
            f"gpu-{n}",
            attributes={"kind": "gpu", "uuid": f"GPU-18a3e86f-4c0e-cd9f-59c3-55488c4b0c2{n}"},
            taints=[taint("example.com/xid", "79")] if f"gpu-{n}" == TAINTED else (),
        )
        for n in range(7)
    ],
    device("card-0", attributes={"kind": "card"}, capacity={"memory": "40Gi"}, shareable=True),
]


def _pod(name: str, **which: str) -> PodSpec:
    """A pod of two containers that use one claim."""
    containers = tuple(ContainerSpec(name, claim_refs=(ClaimRef("device"),)) for name in ("main", "side"))
    return PodSpec(name, containers=containers, resource_claims=(PodClaim("device", **which),))


PODS = (
    _pod("inline", template="one"),
    _pod("sharing-0", claim="common"),
    _pod("sharing-1", claim="common"),
    PodSpec(
        "extended",
        containers=tuple(
            ContainerSpec(name, resources={EXTENDED: count}) for name, count in (("main", 2), ("side", 1))
        ),
    ),
    _pod("watcher", template="watch"),
    _pod("part-0", template="part"),
    _pod("part-1", template="part"),
)


@dataclass
class Node:
    """A kubelet with a driver, and two exporters."""

    kubelet: SimulatedKubelet
    dra: Dra
    informed: str
    """The address of the exporter that reads the API server."""
    plain: str
    """The address of the exporter that reads List alone."""
    since: dict[Owner, float] = field(default_factory=dict[Owner, float])

    async def is_told(self) -> None:
        """Wait until both exporters tell what is true."""
        await until("the API's objects are told", self.told_by_objects)
        await until("List is told", self.told_by_list)

    async def told_by_objects(self) -> bool:
        """Compare what is told with the objects of the API server."""
        samples, found = await owners.scrape(self.informed), uses(self.kubelet)
        assert samples.value("devicelens_dra_source_up", source="slices") == 1
        assert samples.value("devicelens_dra_source_up", source="claims") == 1
        self.same_owners(samples)
        devices = offered(self.kubelet)
        assert len(devices) == len(DEVICES)
        healthy = {labels["device"]: value for labels, value in samples.of("devicelens_device_healthy")}
        # Kubernetes reports no health of extended resources' devices, and none of free ones.
        reported = {one.owner.device for one in found if one.owner.pod != "extended"}
        assert healthy == {
            name: float(name != SICK and not tainted(one))
            for (_, name), one in devices.items()
            if name in reported or tainted(one)
        }
        document = await owners.get_json(self.informed, "/api/v1/devices")
        assert {
            (one["resource"], one["device"]): (one["free"], (one["identity"] or {}).get("uuid") or None)
            for one in document["devices"]
        } == {
            key: (key in free(self.kubelet), one["attributes"].get("uuid", {}).get("string"))
            for key, one in devices.items()
        }
        return True

    def same_owners(self, samples: owners.Samples) -> None:
        """Compare owners with the objects; who held a device before has held it without a break."""
        found = uses(self.kubelet)
        told = samples.of("devicelens_device_owner_info")
        asked_by = {one.owner: one.requested_as for one in found if not one.admin}
        assert {owner_of(labels): labels["requested_as"] for labels, _ in told} == asked_by
        assert len(told) == len(asked_by)
        assert _claimed(samples) == {one.claimed for one in found}
        since = {
            owner_of(labels, pod_uid=""): value
            for labels, value in samples.of("devicelens_device_held_since_timestamp_seconds")
        }
        assert since.keys() == {owner._replace(uid="") for owner in asked_by}
        for owner in self.since.keys() & since.keys():
            assert since[owner] == self.since[owner], owner
        for one in found:
            if not one.admin:
                assert since[one.owner._replace(uid="")] >= self.allocated(one.claimed) - 1
        assert all(value <= time.time() + 1 for value in since.values())
        self.since = since

    def allocated(self, claimed: Claimed) -> float:
        """When the claim was made, in whole seconds."""
        found = self.kubelet.objects.get(CLAIMS, claimed.claim, claimed.claim_namespace)
        assert found is not None
        at = found["status"]["allocation"]["allocationTimestamp"]
        return datetime.fromisoformat(at).timestamp()

    async def told_by_list(self) -> bool:
        """Compare what the exporter without sources tells with List, which names administrators too."""
        samples = await owners.scrape(self.plain)
        assert samples.value("devicelens_up") == 1
        listed = self.kubelet.pod_resources()
        told = samples.of("devicelens_device_owner_info")
        assert {owner_of(labels) for labels, _ in told} == owners_of(listed, node=self.kubelet.node_name)
        assert {labels["requested_as"] for labels, _ in told} == {""}
        assert _claimed(samples) == claims_of(listed)
        assert {labels["uuid"] for labels, _ in samples.of("devicelens_device_identity_info")} == {""}
        for absent in ("dra_source_up", "resource_free_devices", "device_healthy"):
            assert samples.of(f"devicelens_{absent}") == [], absent
        return True


def _claimed(samples: owners.Samples) -> set[Claimed]:
    found = samples.of("devicelens_claim_device_info")
    return {Claimed(*(labels[name] for name in Claimed._fields)) for labels, _ in found}


@asynccontextmanager
async def _node(root: Path) -> AsyncGenerator[Node]:
    simulated = SimulatedKubelet(root, registry_interval=0.05, status_interval=0.05, sync_delay=0.2)
    async with (
        simulated as kubelet,
        dra(kubelet, root, DRIVER, DEVICES, health=True) as found,
    ):
        gpu = device_class("gpu", driver=DRIVER, attributes={"kind": "gpu"}, extended_resource=EXTENDED)
        card = device_class("card", driver=DRIVER, attributes={"kind": "card"})
        for made in (gpu, card):
            kubelet.objects.create(CLASSES, made)
        kubelet.objects.create(CLAIMS, claim("common", request("r", "gpu")))
        for name, wanted in (
            ("one", request("r", "gpu")),
            ("watch", request("r", "gpu", 2, admin=True)),
            ("part", request("r", "card", capacity={"memory": "10Gi"})),
        ):
            kubelet.objects.create(TEMPLATES, claim_template(name, wanted))
        common = ("--kubelet.root", str(root), "--node-name", kubelet.node_name)
        where = (*common, "--web.listen-address", "127.0.0.1:0")
        sources = ("--pods.source", "apiserver", "--dra.source", "slices", "--kubeconfig", found.kubeconfig)
        async with (
            # The API server's word of a pod takes a second without another look at the kubelet.
            Process("exporter", *where, "--poll.interval", "3s", *map(str, sources)) as informed,
            Process(
                "exporter", *where, "--poll.interval", "1s", "--pods.source", "none", "--dra.source", "none"
            ) as plain,
        ):
            node = Node(kubelet, found, await informed.url(), await plain.url())
            found.driver.set_health(SICK, "Unhealthy", "fell off the bus")
            for pod in PODS:
                await kubelet.add_pod(pod)
            yield node


async def test_claims_of_every_kind_over_restarts(root: Path) -> None:
    async with _node(root) as node:
        await node.is_told()
        assert {device for _, device in free(node.kubelet)} == {"gpu-5"}

        await node.kubelet.restart()
        await node.is_told()

        await node.dra.driver.stop()
        going = asyncio.create_task(node.kubelet.delete_pod("default", "sharing-0"))
        await node.dra.driver.start()
        await going
        await node.kubelet.add_pod(_pod("late", template="one"))
        await node.is_told()
        assert free(node.kubelet) == frozenset()

        node.dra.api.faults = ApiFaults(status=503)
        node.dra.api.drop_watches()
        await node.kubelet.delete_pod("default", "part-1")
        await until("the outage is told", partial(_outage_is_told, node))
        await until("List is told", node.told_by_list)

        node.dra.api.faults = ApiFaults()
        await node.kubelet.add_pod(_pod("part-2", template="part"))
        await node.is_told()


async def _outage_is_told(node: Node) -> bool:
    samples = await owners.scrape(node.informed)
    assert samples.value("devicelens_dra_source_up", source="slices") == 0
    node.same_owners(samples)
    return True
