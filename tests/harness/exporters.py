"""Stands for others' exporters: what they would say of a node's devices, in their own names and labels.

Counters grow with time, as their bytes would.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from harness.prometheus import free_port


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured: GPUs by UUID and by the pods that have them, interfaces, HCAs, pods with networks."""

    node: str
    gpus: Sequence[str] = ()
    amd: Sequence[tuple[str, str, str]] = ()
    """Namespace, pod and container of each AMD GPU."""
    hcas: Sequence[str] = ()
    interfaces: Sequence[tuple[str, str]] = ()
    """Names and PCI addresses."""
    pods: Sequence[tuple[str, str]] = ()
    """Namespaces and names."""


class Exporters:
    """An HTTP server with a path for each: /dcgm, /amd, /node, /cadvisor."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.address = f"127.0.0.1:{free_port()}"
        self._started = time.monotonic()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        for path, lines in (
            ("/dcgm", self._dcgm),
            ("/amd", self._amd),
            ("/node", self._node),
            ("/cadvisor", self._cadvisor),
        ):
            app.router.add_get(path, _serving(lines))
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        host, port = self.address.split(":")
        await web.TCPSite(self._runner, host, int(port)).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def _grown(self) -> float:
        return (time.monotonic() - self._started) * 1000

    def _dcgm(self) -> Iterator[str]:
        for number, uuid in enumerate(self.machine.gpus):
            labels = (
                f'gpu="{number}",UUID="{uuid}",pci_bus_id="00000000:1{number}:00.0",device="nvidia{number}",'
                f'modelName="NVIDIA H100 80GB HBM3",Hostname="{self.machine.node}"'
            )
            yield f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {40 + number}"
            yield f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} 0.9"

    def _amd(self) -> Iterator[str]:
        for number, (namespace, pod, container) in enumerate(self.machine.amd):
            yield (
                f'gpu_gfx_activity{{gpu_id="{number}",gpu_partition_id="0",hostname="{self.machine.node}",'
                f'serial_number="692251001{number}",card_model="0xc34",deployment_mode="Baremetal",'
                f'namespace="{namespace}",pod="{pod}",container="{container}",job_id=""}} 25'
            )

    def _node(self) -> Iterator[str]:
        grown = self._grown
        yield (
            f'node_uname_info{{domainname="(none)",machine="x86_64",nodename="{self.machine.node}",'
            'release="6.1.0",sysname="Linux",version="#1 SMP"} 1'
        )
        for hca in self.machine.hcas:
            yield f'node_infiniband_port_data_received_bytes_total{{device="{hca}",port="1"}} {grown}'
            yield f'node_infiniband_port_data_transmitted_bytes_total{{device="{hca}",port="1"}} {grown}'
        for interface, address in self.machine.interfaces:
            yield f'node_network_receive_bytes_total{{device="{interface}"}} {grown}'
            yield f'node_network_transmit_bytes_total{{device="{interface}"}} {grown}'
            yield (
                f'node_ethtool_info{{bus_info="{address}",device="{interface}",driver="iavf",'
                'expansion_rom_version="",firmware_version="4.40",version="6.1.0"} 1'
            )

    def _cadvisor(self) -> Iterator[str]:
        for namespace, pod in self.machine.pods:
            labels = f'namespace="{namespace}",pod="{pod}",interface="net1",id="/kubepods/x",image="",name=""'
            yield f"container_network_receive_bytes_total{{{labels}}} {self._grown}"
            yield f"container_network_transmit_bytes_total{{{labels}}} {self._grown}"


def _serving(
    lines: Callable[[], Iterator[str]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text="".join(f"{line}\n" for line in lines()))

    return handler
