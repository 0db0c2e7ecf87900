"""What claimed devices are, from an API server whose rights come and go, told by a whole exporter."""

from pathlib import Path

import aiohttp

from harness import owners
from harness.processes import Process
from harness.waiting import LIMIT, until
from simulator import SimulatedKubelet
from simulator.apiserver import ApiFaults, ApiServer
from simulator.dra_objects import SLICES, device, resource_slice

UUID = "GPU-18a3e86f-4c0e-cd9f-59c3-55488c4b0c24"


async def test_free_devices_are_known_while_slices_may_be_read(root: Path) -> None:
    async with SimulatedKubelet(root) as kubelet:
        api = ApiServer(kubelet)
        api.faults = ApiFaults(forbidden=frozenset({SLICES}))
        async with api.serve():
            kubeconfig = root / "kubeconfig"
            kubeconfig.write_text(api.kubeconfig(), encoding="utf-8")
            gpu = device("gpu-0", attributes={"uuid": UUID})
            kubelet.objects.create(SLICES, resource_slice("gpu.example.com", kubelet.node_name, [gpu]))
            flags = (
                "--kubelet.root",
                str(root),
                "--node-name",
                kubelet.node_name,
                "--kubeconfig",
                str(kubeconfig),
            )
            where = ("--web.listen-address", "127.0.0.1:0", "--pods.source", "none", "--dra.source", "slices")
            async with Process("exporter", *flags, *where) as exporter:
                url = await exporter.url()

                async def refused() -> bool:
                    samples = await owners.scrape(url)
                    return samples.value("devicelens_dra_source_up", source="slices") == 0 and bool(
                        await _notes(url)
                    )

                await until("the missing right is said", refused, limit=LIMIT)
                assert "deploy/components/dra" in (await _notes(url))[0]
                assert "it may not list and watch resourceslices" in (await owners.get(url, "/"))[1]
                assert (await owners.scrape(url)).of("devicelens_device_info") == []
        api.faults = ApiFaults()
        async with api.serve():
            kubeconfig.write_text(api.kubeconfig(), encoding="utf-8")
            async with Process("exporter", *flags, *where) as exporter:
                url = await exporter.url()

                async def known() -> bool:
                    found = (await owners.scrape(url)).of("devicelens_device_identity_info")
                    return [labels["uuid"] for labels, _ in found] == [UUID]

                await until("the free device is known", known, limit=LIMIT)
                assert (await owners.scrape(url)).value("devicelens_dra_source_up", source="slices") == 1
                assert await _notes(url) == []


async def _notes(url: str) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/status") as answer:
        found: list[str] = (await answer.json())["notes"]
        return found
