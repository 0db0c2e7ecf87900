"""Paths of the kubelet's sockets and directories below its root directory."""

from pathlib import Path
from typing import Final

from msgspec import Struct

from runtime.flags import UNIX_PATH_BYTES

KUBELET_SOCKET: Final = "kubelet.sock"
"""File name of the kubelet's socket, in device-plugins and in pod-resources."""
CHECKPOINT: Final = "kubelet_internal_checkpoint"
"""File name of the device manager's checkpoint."""


class KubeletPaths(Struct, frozen=True):
    """The kubelet's directories and sockets below `root` (its --root-dir, /var/lib/kubelet).

    The kubelet replaces the sockets at each restart; the directories stay.
    """

    root: Path

    @property
    def device_plugins(self) -> Path:
        """Directory of kubelet.sock, of every plugin's socket and of the device manager's checkpoint."""
        return self.root / "device-plugins"

    @property
    def registration_socket(self) -> Path:
        """Where the kubelet serves device plugin Registration."""
        return self.device_plugins / KUBELET_SOCKET

    @property
    def checkpoint(self) -> Path:
        """The device manager's checkpoint file, renamed into place after each allocation."""
        return self.device_plugins / CHECKPOINT

    @property
    def pod_resources(self) -> Path:
        """Directory of the PodResources socket."""
        return self.root / "pod-resources"

    @property
    def pod_resources_socket(self) -> Path:
        """Where the kubelet serves PodResourcesLister."""
        return self.pod_resources / KUBELET_SOCKET

    @property
    def plugins_registry(self) -> Path:
        """Directory in which the kubelet looks for the sockets of plugins."""
        return self.root / "plugins_registry"

    @property
    def pods_api(self) -> Path:
        """Directory of the Pods API socket."""
        return self.root / "pods-api"

    @property
    def pods_api_socket(self) -> Path:
        """Where the kubelet serves the Pods API, if that is enabled."""
        return self.pods_api / "pods-api.sock"


def socket_target(path: Path) -> str:
    """The gRPC target of the unix socket at `path`.

    Raises ValueError for a path longer than the kernel takes, naming the path and the limit.
    """
    absolute = path if path.is_absolute() else path.absolute()
    length = len(bytes(absolute))
    if length > UNIX_PATH_BYTES:
        raise ValueError(f"socket path is {length} bytes long, at most {UNIX_PATH_BYTES} work: {absolute}")
    return f"unix:{absolute}"
