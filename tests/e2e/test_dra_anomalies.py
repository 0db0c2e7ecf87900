"""Health and anomalies of claimed devices, told by a whole exporter: a DRA driver reports health, taints a
device, and gives one that a device plugin gave as well.
"""

from pathlib import Path

import aiohttp

from harness import owners
from harness.processes import Process
from harness.scripted import pod, registered
from harness.waiting import until, until_holds
from simulator import ClaimRef, ContainerSpec, PodClaim, PodSpec, SimulatedKubelet
from simulator.apiserver import ApiServer
from simulator.devices import Device
from simulator.dra_driver import DraDriver, http_api
from simulator.dra_objects import CLASSES, TEMPLATES, claim_template, device, device_class, request, taint

DRIVER, PLUGIN = "gpu.example.com", "example.com/gpu"
UUIDS = [f"GPU-18a3e86f-4c0e-cd9f-59c3-55488c4b0c2{number}" for number in range(3)]
GPUS = [device(f"gpu-{number}", attributes={"uuid": uuid}) for number, uuid in enumerate(UUIDS)]


def _pod(name: str, template: str) -> PodSpec:
    container = ContainerSpec("main", claim_refs=(ClaimRef("gpu"),))
    return PodSpec(name, containers=(container,), resource_claims=(PodClaim("gpu", template=template),))


async def test_health_taints_and_a_device_that_is_given_twice(root: Path) -> None:
    sim = SimulatedKubelet(root, registry_interval=0.05, status_interval=0.05, pods_api=True)
    async with sim as kubelet:
        kubelet.objects.create(CLASSES, device_class("gpu", driver=DRIVER))
        kubelet.objects.create(TEMPLATES, claim_template("one", request("r", "gpu")))
        api = ApiServer(kubelet)
        async with (
            api.serve(),
            aiohttp.ClientSession(api.url) as session,
            DraDriver(
                *(root, DRIVER, kubelet.node_name, GPUS),
                api=http_api(session),
                cdi_root=root / "cdi",
                interval=0.05,
                cdi_name_per_device=True,
            ) as driver,
            registered(kubelet, PLUGIN, [Device(UUIDS[1])]),
        ):
            await until_holds(lambda: driver.notified)
            for name in ("sick", "twice"):
                await kubelet.add_pod(_pod(name, "one"))
            await kubelet.add_pod(pod("plain", PLUGIN))
            kubeconfig = root / "kubeconfig"
            kubeconfig.write_text(api.kubeconfig(), encoding="utf-8")
            flags = ("--kubelet.root", root, "--node-name", kubelet.node_name, "--kubeconfig", kubeconfig)
            where = ("--web.listen-address", "127.0.0.1:0", "--poll.interval", "1s")
            async with Process("exporter", *map(str, flags), *where) as exporter:
                await _told(await exporter.url(), driver)


async def _told(url: str, driver: DraDriver) -> None:
    async def is_so(health: dict[str, float], anomalies: set[tuple[str, str, str]]) -> None:
        async def seen() -> bool:
            samples = await owners.scrape(url)
            healthy = samples.of("devicelens_device_healthy", resource=DRIVER)
            found = [labels for labels, _ in samples.of("devicelens_anomaly_info")]
            kinds = {(one["kind"], one["device"], one["pod"]) for one in found}
            return ({labels["device"]: value for labels, value in healthy}, kinds) == (health, anomalies)

        await until(f"{health} and {anomalies}", seen)

    twice = {("double_held", "gpu-1", "twice"), ("double_held", UUIDS[1], "plain")}
    # No status says anything about a device that nobody holds.
    await is_so({"gpu-0": 1, "gpu-1": 1}, twice)
    driver.set_health("gpu-0", "Unhealthy", "fell off the bus")
    await is_so({"gpu-0": 0, "gpu-1": 1}, {*twice, ("unhealthy_held", "gpu-0", "sick")})
    (document,) = [
        one
        for one in (await owners.get_json(url, "/api/v1/anomalies"))["anomalies"]
        if one["kind"] == "unhealthy_held"
    ]
    assert "fell off the bus" in document["evidence"]
    driver.set_health("gpu-0", "Healthy")
    taints = [taint("maintenance", effect="NoSchedule")]
    await driver.offer([device("gpu-0", attributes={"uuid": UUIDS[0]}, taints=taints), *GPUS[1:]])
    await is_so({"gpu-0": 0, "gpu-1": 1}, {*twice, ("tainted_held", "gpu-0", "sick")})
    await driver.offer(GPUS)
    await is_so({"gpu-0": 1, "gpu-1": 1}, twice)
