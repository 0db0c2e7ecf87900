"""NVML for a test: a library built from nvml.c, put into a host tree where drivers' installers put it."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml

from harness.hosttree import HostTree
from harness.tools import shared_library
from plugin.discovery.nvml import LIBRARY, NVML

A100 = "gpu GPU-11111111-2222-3333-4444-555555555555 0 00000000:3B:00.0 0 40960 NVIDIA A100-SXM4-40GB"
A100_MIG = A100.replace(" 0 40960", " 1 40960")
H100 = "gpu GPU-66666666-7777-8888-9999-000000000000 1 00010000:AF:00.0 0 81920 NVIDIA H100 80GB HBM3"
A100_UUID, H100_UUID = A100.split()[1], H100.split()[1]
SLICES = (
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000001 1 0 3 3 19968",
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000002 7 0 1 1 4864",
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000003 8 0 2 1 9856",
)


def show_gpu(tree: HostTree, address: str, minor: int, uuid: str, **more: str) -> None:
    """The driver's file of a GPU in /proc, and its node."""
    lines = {"Model": "NVIDIA A100", "IRQ": "77", "GPU UUID": uuid, "Device Minor": str(minor), **more}
    text = "".join(f"{key}: \t {value}\n" for key, value in lines.items())
    tree.file(f"/proc/driver/nvidia/gpus/{address}/information", text)
    tree.file(f"/dev/nvidia{minor}")


def show_capability(tree: HostTree, name: str, number: int) -> None:
    """The driver's file of a capability of the first GPU (`gi1`, `gi1/ci0`), and its node."""
    text = f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    tree.file(f"/proc/driver/nvidia/capabilities/gpu0/mig/{name}/access", text)
    tree.file(f"/dev/nvidia-caps/nvidia-cap{number}")


def divide(tree: HostTree, *instances: int) -> None:
    """The driver's files of GPU instances of the first GPU, among 1, 7, and 8; of all three by default."""
    for instance in instances or (1, 7, 8):
        number = {1: 12, 7: 66, 8: 75}[instance]
        show_capability(tree, f"gi{instance}", number)
        show_capability(tree, f"gi{instance}/ci0", number + 1)


@dataclass
class FakeNvml:
    """The state of the library, as the lines that nvml.c explains."""

    state: Path

    def reports(self, *lines: str) -> None:
        """Report these lines from now on."""
        made = self.state.with_suffix(".new")
        made.write_text("".join(f"{line}\n" for line in lines))
        made.replace(self.state)

    @property
    def initialised(self) -> int:
        """How often the library was initialised."""
        count = Path(f"{self.state}.begun")
        return len(count.read_text()) if count.exists() else 0


@contextmanager
def without_nvml() -> Generator[None]:
    """This machine's own NVML, if there is one, does not count; whatever was loaded is let go of after."""
    by_loader, NVML.by_loader = NVML.by_loader, ()
    _forget()
    try:
        yield
    finally:
        _forget()
        NVML.by_loader = by_loader


@contextmanager
def with_nvml(tree: HostTree) -> Generator[FakeNvml]:
    """NVML in the host tree, without a device."""
    with without_nvml():
        shutil.copy(shared_library(Path(__file__).with_name("nvml.c")), tree.at(f"/usr/lib64/{LIBRARY}"))
        fake = FakeNvml(tree.root.parent / "nvml")
        os.environ["FAKE_NVML"] = str(fake.state)
        try:
            fake.reports()
            yield fake
        finally:
            fake.reports()
            _forget()
            del os.environ["FAKE_NVML"]


def _forget() -> None:
    NVML.reset()
    pynvml.nvmlLib = None
    vars(pynvml)["_nvmlGetFunctionPointer_cache"].clear()
