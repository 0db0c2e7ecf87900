"""Dynamic Resource Allocation in the simulated kubelet, with a driver over real sockets."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from harness.recordings import RECORDINGS
from harness.waiting import background, until_holds
from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pluginregistration.v1 import api_pb2 as registration
from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.pods.v1alpha1 import api_pb2 as pods_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2_grpc as pods_grpc
from simulator import ClaimRef, ContainerSpec, PodClaim, PodSpec, SimulatedKubelet
from simulator.apiserver import ApiServer
from simulator.devices import Device
from simulator.dra_driver import DraDriver, http_api
from simulator.dra_objects import (
    CLAIMS,
    CLASSES,
    SLICES,
    TEMPLATES,
    Object,
    claim,
    claim_template,
    device,
    device_class,
    first_available,
    request,
    taint,
)
from simulator.rpc import target
from simulator.scripted import ScriptedPlugin

DRIVER = "test-driver.cdi.k8s.io"
RECORDED = "dra-extended-resource-admin-access-and-health"


@asynccontextmanager
async def driving(
    kubelet: SimulatedKubelet, devices: Iterable[Object], name: str = DRIVER, **settings: Any
) -> AsyncGenerator[DraDriver]:
    """A driver that is registered, and whose slices a real HTTP server has."""
    api = ApiServer(kubelet)
    async with (
        api.serve(),
        aiohttp.ClientSession(api.url) as session,
        DraDriver(
            kubelet.root,
            name,
            kubelet.node_name,
            devices,
            api=http_api(session),
            cdi_root=kubelet.root / "cdi",
            interval=0.05,
            **settings,
        ) as driver,
    ):
        await until_holds(lambda: driver.notified)
        assert driver.notified[0].plugin_registered
        yield driver


def of(name: str, *containers: ContainerSpec, claims: tuple[PodClaim, ...] = (), **more: Any) -> PodSpec:
    return PodSpec(name, containers=containers, resource_claims=claims, **more)


def user(name: str = "a", *references: str, **more: Any) -> ContainerSpec:
    return ContainerSpec(name, claim_refs=tuple(ClaimRef(one) for one in references), **more)


def recorded(what: str) -> Any:
    return json.loads((RECORDINGS / f"{RECORDED}.{what}.json").read_text(encoding="utf-8"))


async def test_the_recorded_claims_give_the_recorded_list_and_status(root: Path) -> None:
    """The recording's slice, class, claims and pods as objects; the driver and scheduler do the rest."""
    (recorded_slice,), (recorded_class,) = recorded("resourceslices"), recorded("deviceclasses")
    sim = SimulatedKubelet(root, node_name="bed-node", registry_interval=0.05, pods_api=True)
    async with sim as kubelet:
        kubelet.objects.create(CLASSES, recorded_class)
        either = first_available("r", request("big", "example"), request("small", "example"))
        kubelet.objects.create(TEMPLATES, claim_template("one", request("r", "example")))
        kubelet.objects.create(TEMPLATES, claim_template("either", either))
        every = claim("watch-all", request("all", "example", every=True, admin=True), namespace="monitoring")
        kubelet.objects.create(CLAIMS, every)
        disks = [Device("a"), Device("b")]
        async with (
            driving(kubelet, recorded_slice["spec"]["devices"], cdi_class="test", reports_health=False),
            ScriptedPlugin(root, "held.example/disk", disks) as plugin,
        ):
            await plugin.register()
            await kubelet.wait_until(lambda k: k.allocatable("held.example/disk") == 2)
            wanted = {"example.com/gpu": 2}
            await kubelet.add_pod(of("by-extended-resource", user("main", resources=wanted), user("side")))
            for name, template in (("by-claim", "one"), ("by-list", "either")):
                await kubelet.add_pod(of(name, user("a", "g"), claims=(PodClaim("g", template=template),)))
            watcher = of(
                "watcher", user("a", "g"), claims=(PodClaim("g", "watch-all"),), namespace="monitoring"
            )
            await kubelet.add_pod(watcher)
            await kubelet.add_pod(of("holds-disk", ContainerSpec("c", {"held.example/disk": 2})))
            plugin.send([Device("a", "Unhealthy"), Device("b")])
            await kubelet.wait_until(lambda k: k.allocatable("held.example/disk") == 1)
            names = _same_names(kubelet)
            listed = (RECORDINGS / f"{RECORDED}.list.binpb").read_bytes()
            expected = v1.ListPodResourcesResponse.FromString(listed)
            assert _text(kubelet.pod_resources(), names) == _text(expected, {})
            ours = {c["metadata"]["name"]: c for c in kubelet.objects.all(CLAIMS)}
            async with grpc.aio.insecure_channel(target(kubelet.paths()["pods_api"])) as channel:
                stub: pods_grpc.PodsAsyncStub = pods_grpc.PodsStub(channel)
                by_pods_api = await stub.ListPods(pods_pb2.ListPodsRequest())
            api = ApiServer(kubelet)
            async with api.serve(), aiohttp.ClientSession(api.url) as session:
                query = {"fieldSelector": "spec.nodeName=bed-node"}
                async with session.get("/api/v1/pods", params=query) as response:
                    pods = {pod["metadata"]["name"]: pod for pod in (await response.json())["items"]}
    for theirs in recorded("resourceclaims"):
        one = ours[names["claims"][theirs["metadata"]["name"]]]
        assert one["spec"] == theirs["spec"]
        assert _allocation(one) == _allocation(theirs)
    by_the_recorded = pods_pb2.ListPodsResponse.FromString(
        (RECORDINGS / f"{RECORDED}.pods.binpb").read_bytes()
    )
    assert _facts(by_pods_api, names) == _facts(by_the_recorded, {"replaced": {}})
    for theirs in recorded("pods"):
        one = pods[theirs["metadata"]["name"]]
        for field in ("resourceClaimStatuses", "extendedResourceClaimStatus"):
            assert _plain(one["status"].get(field), names) == theirs["status"].get(field)
        assert one["spec"].get("resourceClaims") == theirs["spec"].get("resourceClaims")
        assert _plain(_health(one), names) == _health(theirs)


def _facts(listed: pods_pb2.ListPodsResponse, names: Any) -> dict[str, Any]:
    """What the Pods API says of pods' claims and health, by pod."""
    pods = [MessageToDict(pod_pb2.Pod.FromString(content)) for content in listed.pods]
    fields = ("resourceClaimStatuses", "extendedResourceClaimStatus")
    return {
        pod["metadata"]["name"]: _plain(
            [_health(pod), pod["spec"].get("resourceClaims"), [pod["status"].get(name) for name in fields]],
            names,
        )
        for pod in pods
    }


def _health(pod: Object) -> Object:
    """allocatedResourcesStatus by container, in one order."""
    return {
        one["name"]: [
            entry | {"resources": sorted(entry["resources"], key=lambda r: r["resourceID"])}
            for entry in one["allocatedResourcesStatus"]
        ]
        for one in pod["status"].get("containerStatuses", ())
        if "allocatedResourcesStatus" in one
    }


def _allocation(document: Object) -> Object:
    allocation: Object = document["status"]["allocation"]
    return {key: value for key, value in allocation.items() if key != "allocationTimestamp"}


def _same_names(kubelet: SimulatedKubelet) -> Any:
    """What is random here and there: claims' names by the recorded ones, and uids."""
    theirs = {c["metadata"]["name"]: c for c in recorded("resourceclaims")}
    ours = {c["metadata"]["name"]: c for c in kubelet.objects.all(CLAIMS)}
    claims: dict[str, str] = {}
    for name in theirs:
        stem = name if name in ours else name[:-5]
        (claims[name],) = [own for own in ours if own.startswith(stem) and len(own) == len(name)]
    replaced = {own: name for name, own in claims.items()}
    replaced |= {
        ours[own]["metadata"]["uid"]: theirs[name]["metadata"]["uid"] for name, own in claims.items()
    }
    return {"claims": claims, "replaced": replaced}


def _plain(document: Any, names: Any) -> Any:
    text = json.dumps(document)
    for own, name in names["replaced"].items():
        text = text.replace(own, name)
    return json.loads(text)


def _text(listed: v1.ListPodResourcesResponse, names: Any) -> str:
    for pod in listed.pod_resources:
        for container in pod.containers:
            container.devices.sort(key=lambda entry: entry.device_ids[0])
    listed.pod_resources.sort(key=lambda pod: (pod.namespace, pod.name))
    text = str(listed)
    for own, name in names.get("replaced", {}).items():
        text = text.replace(own, name)
    return text


GPUS = [device(f"g{n}", attributes={"model": "a" if n < 2 else "b"}) for n in range(3)]


@pytest.fixture
async def cluster(kubelet: SimulatedKubelet) -> SimulatedKubelet:
    """With a class for every device of the driver, one for a model, and templates for one device of each."""
    kubelet.objects.create(CLASSES, device_class("gpu", driver=DRIVER, extended_resource="example.com/gpu"))
    kubelet.objects.create(CLASSES, device_class("b", driver=DRIVER, attributes={"model": "b"}))
    for name in ("gpu", "b"):
        kubelet.objects.create(TEMPLATES, claim_template(name, request("r", name)))
    return kubelet


def one_of(template: str, name: str = "p") -> PodSpec:
    return of(name, user("a", "g"), claims=(PodClaim("g", template=template),))


def held(kubelet: SimulatedKubelet) -> dict[str, list[str]]:
    """Devices by pod, as List has them."""
    return {
        pod.name: [
            resource.device_name
            for container in pod.containers
            for claimed in container.dynamic_resources
            for resource in claimed.claim_resources
        ]
        for pod in kubelet.pod_resources().pod_resources
    }


def health(kubelet: SimulatedKubelet, pod: str) -> list[tuple[str, str]]:
    (found,) = [one for one in kubelet.pods() if one.spec.name == pod]
    return [
        (one.health, one.message)
        for told in found.health.values()
        for entries in told.values()
        for one in entries
    ]


async def test_a_pod_waits_for_a_device_and_its_end_frees_it(cluster: SimulatedKubelet) -> None:
    async with driving(cluster, GPUS) as driver:
        await cluster.add_pod(one_of("b", "first"))
        assert held(cluster) == {"first": ["g2"]}, "the only one of its model"
        (uid,) = driver.prepared
        (file,) = (cluster.root / "cdi").iterdir()
        written = json.loads(file.read_text(encoding="utf-8"))
        assert (file.name, written["kind"]) == (f"{DRIVER}-claim_{uid}.json", f"{DRIVER}/claim")
        (named,) = written["devices"]
        assert named == {"name": f"claim-{uid}-r", "containerEdits": {"env": ["CLAIMED_G2=sim-node/g2"]}}
        async with asyncio.TaskGroup() as group:
            second = group.create_task(cluster.add_pod(one_of("b", "second")))
            await until_holds(cluster.unscheduled)
            assert "0 of 1" in cluster.unscheduled()[0].message
            await cluster.delete_pod("default", "first")
            await second
        assert held(cluster) == {"second": ["g2"]}
        assert uid not in driver.prepared
        assert not file.exists()
        await cluster.complete_pod("default", "second")
        await until_holds(lambda: not cluster.objects.all(CLAIMS))
        assert not driver.prepared


async def test_a_shared_claim_keeps_its_device_to_the_last_pod(cluster: SimulatedKubelet) -> None:
    cluster.objects.create(CLAIMS, claim("shared", request("r", "gpu")))
    pods = [of(name, user("a", "g"), claims=(PodClaim("g", "shared"),)) for name in ("one", "two")]
    async with driving(cluster, GPUS) as driver:
        await cluster.add_pod(pods[0])
        await cluster.add_pod(pods[1])
        assert held(cluster) == {"one": ["g0"], "two": ["g0"]}
        await cluster.delete_pod("default", "one")
        assert len(driver.prepared) == 1
        await cluster.delete_pod("default", "two")
        assert not driver.prepared
        (left,) = cluster.objects.all(CLAIMS)
        assert left["status"] == {}


async def test_an_extended_resource_is_the_plugins_where_it_offers_some(cluster: SimulatedKubelet) -> None:
    async with (
        driving(cluster, GPUS),
        ScriptedPlugin(cluster.root, "example.com/gpu", [Device("x")]) as plugin,
    ):
        await plugin.register()
        await cluster.wait_until(lambda k: k.allocatable("example.com/gpu"))
        await cluster.add_pod(of("p", ContainerSpec("a", {"example.com/gpu": 1})))
        assert held(cluster) == {"p": []}
        plugin.send([Device("x", "Unhealthy")])
        await cluster.wait_until(lambda k: not k.allocatable("example.com/gpu"))
        await cluster.add_pod(of("q", ContainerSpec("a", {"example.com/gpu": 1})))
        assert held(cluster) == {"p": [], "q": ["g0"]}
        (extended,) = [pod.extended for pod in cluster.pods() if pod.extended is not None]
        assert [one.request for one in extended.requests] == ["container-0-request-0"]


async def test_partitions_of_one_device_share_its_counters(cluster: SimulatedKubelet) -> None:
    def part(name: str, memory: str) -> Object:
        return device(name, consumes={"gpu-0": {"memory": memory}})

    devices = [part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi")]
    async with driving(cluster, devices, counters={"gpu-0": {"memory": "40Gi"}}):
        cluster.objects.create(TEMPLATES, claim_template("two", request("r", "gpu", 2)))
        await cluster.add_pod(one_of("gpu", "whole"))
        waiting = asyncio.create_task(cluster.add_pod(one_of("two", "halves")))
        await until_holds(cluster.unscheduled)
        await cluster.delete_pod("default", "whole")
        # The whole device comes first, and leaves nothing for a second one.
        await cluster.delete_pod("default", "halves")
        with pytest.raises(RuntimeError, match="deleted before it fitted"):
            await waiting
        await cluster.add_pod(one_of("gpu", "again"))
        assert held(cluster) == {"again": ["whole"]}


async def test_a_shareable_device_is_given_in_shares(cluster: SimulatedKubelet) -> None:
    nic = device("nic", capacity={"bandwidth": "10G"}, shareable=True)
    some = claim_template("some", request("r", "gpu", capacity={"bandwidth": "6G"}))
    cluster.objects.create(TEMPLATES, some)
    cluster.objects.create(
        TEMPLATES, claim_template("less", request("r", "gpu", capacity={"bandwidth": "4G"}))
    )
    async with driving(cluster, [nic]) as driver:
        await cluster.add_pod(one_of("some", "p"))
        await cluster.add_pod(one_of("less", "q"))
        shares = {
            resource.share_id
            for pod in cluster.pod_resources().pod_resources
            for resource in pod.containers[0].dynamic_resources[0].claim_resources
        }
        assert len(shares) == 2
        assert "" not in shares
        consumed = sorted(
            one["consumedCapacity"]["bandwidth"] for c in driver.prepared.values() for one in c.results
        )
        assert consumed == ["4G", "6G"]
        waiting = asyncio.create_task(cluster.add_pod(one_of("less", "r")))
        await until_holds(cluster.unscheduled)
        await cluster.delete_pod("default", "q")
        await waiting


async def test_taints_repel_pods_and_noexecute_ends_them(cluster: SimulatedKubelet) -> None:
    async with driving(cluster, [device("g0", taints=[taint("broken")]), device("g1")]) as driver:
        tolerant = request("r", "gpu", tolerations=[{"key": "broken", "operator": "Exists"}])
        cluster.objects.create(TEMPLATES, claim_template("tolerant", tolerant))
        await cluster.add_pod(one_of("gpu", "plain"))
        await cluster.add_pod(one_of("tolerant", "tolerant"))
        assert held(cluster) == {"plain": ["g1"], "tolerant": ["g0"]}
        taints = [taint("broken", effect="NoExecute")]
        await driver.offer([device("g0", taints=taints), device("g1", taints=taints)])
        await cluster.wait_until(lambda k: held(k) == {"tolerant": ["g0"]})
        (published,) = cluster.objects.all(SLICES)
        assert published["spec"]["pool"]["generation"] == 2


async def test_health_reaches_the_status_of_the_pods_that_hold_the_device(cluster: SimulatedKubelet) -> None:
    changes: list[str] = []
    async with driving(cluster, GPUS, cdi_name_per_device=True) as driver:
        await cluster.wait_until(lambda k: k.calls["NodeWatchResources"])
        await cluster.add_pod(one_of("gpu"))
        await cluster.wait_until(lambda k: health(k, "p") == [("Healthy", "")])
        with cluster.following(lambda kind, _: changes.append(kind)):
            driver.set_health("g0", "Unhealthy", "too hot" + "!" * 2000)
            await cluster.wait_until(lambda k: health(k, "p")[0][0] == "Unhealthy")
            driver.set_health("g2", "Unhealthy")
        assert changes == ["MODIFIED"], "of devices that nobody holds no pod says anything"
        message = health(cluster, "p")[0][1]
        assert (len(message), message[-3:]) == (1024, "...")


async def test_health_that_is_old_or_has_no_stream_is_unknown(root: Path) -> None:
    now = 0.0
    sim = SimulatedKubelet(root, registry_interval=0.05, status_interval=0.01, monotonic=lambda: now)
    async with sim as kubelet:
        kubelet.objects.create(CLASSES, device_class("gpu", driver=DRIVER))
        kubelet.objects.create(TEMPLATES, claim_template("gpu", request("r", "gpu")))
        async with driving(kubelet, GPUS, health_interval=3600.0) as driver:
            await kubelet.add_pod(one_of("gpu"))
            await kubelet.wait_until(lambda k: health(k, "p") == [("Healthy", "")])
            now = 31.0
            await kubelet.wait_until(lambda k: health(k, "p") == [("Unknown", "")])
            driver.set_health("g0", "Unhealthy")
            await kubelet.wait_until(lambda k: health(k, "p") == [("Unhealthy", "")])
        await kubelet.wait_until(lambda k: health(k, "p") == [("Unknown", "")])


async def test_slices_go_with_the_kubelet_and_with_the_driver_and_come_back(root: Path) -> None:
    async with SimulatedKubelet(root, registry_interval=0.05, sync_delay=0.0, wipe_delay=0.01) as kubelet:
        async with driving(kubelet, GPUS) as driver:
            (before,) = kubelet.objects.all(SLICES)
            await kubelet.restart()
            await until_holds(lambda: kubelet.objects.all(SLICES) not in ([], [before]))
            (after,) = kubelet.objects.all(SLICES)
            assert after["spec"] == before["spec"]
            await until_holds(lambda: len(driver.notified) == 2)
        await kubelet.wait_until(lambda k: not k.objects.all(SLICES))


async def test_claims_outlive_kubelet_and_driver(root: Path) -> None:
    sim = SimulatedKubelet(root, registry_interval=0.05, sync_delay=0.0, wipe_delay=0.0)
    async with sim as kubelet:
        kubelet.objects.create(CLASSES, device_class("gpu", driver=DRIVER))
        kubelet.objects.create(TEMPLATES, claim_template("gpu", request("r", "gpu")))
        async with driving(kubelet, GPUS) as driver:
            await kubelet.add_pod(one_of("gpu"))
            prepared = dict(driver.prepared)
        await kubelet.restart()
        assert held(kubelet) == {"p": ["g0"]}
        (file,) = (root / "cdi").iterdir()
        file.unlink()
        async with driving(kubelet, GPUS) as driver:
            assert driver.prepared == prepared
            assert file.exists()
            await until_holds(lambda: kubelet.objects.all(SLICES))
            await kubelet.add_pod(one_of("gpu", "q"))
            assert held(kubelet) == {"p": ["g0"], "q": ["g1"]}
            await kubelet.delete_pod("default", "p")
            assert not file.exists()


async def test_the_driver_refuses_a_device_twice_and_the_kubelet_asks_again(
    cluster: SimulatedKubelet,
) -> None:
    async with driving(cluster, GPUS) as driver:
        await cluster.add_pod(one_of("gpu"))
        # A scheduler that has lost its memory: the first claim is gone for it alone.
        (first,) = cluster.objects.all(CLAIMS)
        cluster.objects.update(CLAIMS, first | {"status": {}})
        async with background(_ignoring(cluster.add_pod(one_of("gpu", "q")))):
            await cluster.wait_until(lambda k: k.calls["NodePrepareResources"] > 2)
            assert held(cluster)["q"] == [], "listed as a claim without devices"
            assert {pod.spec.name: str(pod.phase) for pod in cluster.pods()}["q"] == "Pending"
            assert len(driver.prepared) == 1
            await cluster.delete_pod("default", "p")
            await cluster.wait_until(lambda k: held(k) == {"q": ["g0"]})


async def _ignoring(work: Any) -> None:
    await work


@pytest.mark.parametrize("versions", [["v1beta1.DRAPlugin"], []])
async def test_a_driver_without_a_service_of_the_kubelet_is_refused(
    cluster: SimulatedKubelet, versions: list[str]
) -> None:
    info = registration.PluginInfo(type="DRAPlugin", name=DRIVER, supported_versions=versions)
    async with ScriptedPlugin(cluster.root, DRIVER, directory="plugins_registry", info=info) as plugin:
        await until_holds(lambda: plugin.notified)
    assert "invalid supported gRPC versions of DRA driver plugin" in plugin.notified[0].error


async def test_fields_of_a_gate_that_is_off_are_noticed_and_not_sent_for_ever(
    cluster: SimulatedKubelet,
) -> None:
    api = ApiServer(cluster)
    writes: list[str] = []
    async with api.serve(), aiohttp.ClientSession(api.url) as session:
        served = http_api(session)

        async def without_taints(method: str, path: str, body: Object | None) -> tuple[int, Object]:
            if method in {"POST", "PUT"} and body is not None:
                writes.append(method)
                body = deepcopy(body)
                for one in body["spec"]["devices"]:
                    one.pop("taints", None)
            return await served(method, path, body)

        tainted, plain = [device("g0", taints=[taint("broken")])], [device("g0")]
        for devices, drops in ((plain, False), (tainted, True)):
            async with DraDriver(
                cluster.root, DRIVER, "sim-node", devices, api=without_taints, cdi_root=cluster.root / "cdi"
            ) as driver:
                await driver.publish()
                await driver.publish()
                assert driver.fields_dropped == drops
    assert writes == ["POST", "PUT"]
    async with driving(cluster, tainted) as driver:
        assert not driver.fields_dropped, "the API server adds a taint's time"
