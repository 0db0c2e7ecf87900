"""The demo's devices for Dynamic Resource Allocation: four NPUs, of which one is out of service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from simulator.apiserver import ApiServer
from simulator.dra_driver import DraDriver, http_api
from simulator.dra_objects import (
    CLASSES,
    TEMPLATES,
    Object,
    claim_template,
    device,
    device_class,
    request,
    taint,
)
from simulator.kubelet import SimulatedKubelet

DRIVER: Final = "npu.example.com"
CLASS: Final = "npu"
EXTENDED_RESOURCE: Final = "example.com/npu"
TEMPLATE: Final = "one-npu"
NAMESPACE: Final = "inference"
"""Where the template is."""

_UUIDS: Final = (
    "NPU-1f0c6d52-8a3b-4c7e-b1d0-6f2e9a845c10",
    "NPU-5b7e2a94-03cd-4f18-9e6a-d4c1807b3f21",
    "NPU-93d8f1c6-7e42-4ba5-8c07-2a6b5e0d9f32",
    "NPU-c4a60b7d-51ef-4d29-a3b8-98e7f1d26a43",
)
_OUT_OF_SERVICE: Final = 3


def npus() -> list[Object]:
    """The devices as their driver publishes them."""
    return [
        device(
            f"npu-{n}",
            attributes={
                "uuid": uuid,
                "productName": "Example NPU 200",
                "resource.kubernetes.io/pciBusID": f"0000:{0x5E + n // 2 * 0x60:02x}:0{n % 2}.0",
                "resource.kubernetes.io/numaNode": n // 2,
            },
            capacity={"memory": "32Gi"},
            taints=[taint("example.com/maintenance", "fan")] if n == _OUT_OF_SERVICE else (),
        )
        for n, uuid in enumerate(_UUIDS)
    ]


@asynccontextmanager
async def npu_driver(kubelet: SimulatedKubelet, directory: Path) -> AsyncGenerator[tuple[DraDriver, Path]]:
    """A driver that offers them, beside an API server; gives the driver and the API server's kubeconfig."""
    kubelet.objects.create(CLASSES, device_class(CLASS, driver=DRIVER, extended_resource=EXTENDED_RESOURCE))
    kubelet.objects.create(TEMPLATES, claim_template(TEMPLATE, request("npu", CLASS), namespace=NAMESPACE))
    api = ApiServer(kubelet)
    async with api.serve() as url, aiohttp.ClientSession(url) as session:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig(), encoding="utf-8")
        async with DraDriver(
            kubelet.root,
            DRIVER,
            kubelet.node_name,
            npus(),
            api=http_api(session),
            cdi_root=directory / "cdi",
            cdi_name_per_device=True,
        ) as driver:
            yield driver, kubeconfig
