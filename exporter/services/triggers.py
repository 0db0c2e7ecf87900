"""What makes the exporter ask: changes in the kubelet's directories.

The kubelet tells nobody that it allocated, but it writes: a checkpoint after each allocation, a
socket for each plugin and for itself. Directories are followed, never sockets: those come and go.
"""

from collections.abc import Callable

from daemon.directory import Change, DirectoryWatcher, Kind
from daemon.paths import CHECKPOINT, KUBELET_SOCKET, KubeletPaths
from exporter.services.partners import Trigger

Ask = Callable[[Trigger], None]


def of_device_plugins(change: Change) -> Trigger | None:
    """What a change in device-plugins means.

    The device manager writes `.<number>` and renames it to the checkpoint; List shows the allocation
    from the first of the two on. Everything else that comes or goes there is a socket.
    """
    match change.kind:
        case Kind.APPEARED if change.name == CHECKPOINT or change.name.startswith("."):
            return Trigger.ALLOCATION
        case Kind.WRITTEN if change.name == CHECKPOINT:
            return Trigger.ALLOCATION
        case Kind.APPEARED | Kind.RESCAN:
            return Trigger.REGISTRATION
        case Kind.VANISHED if not change.name.startswith("."):
            return Trigger.REGISTRATION
        case _:
            return None


def of_pod_resources(change: Change) -> Trigger | None:
    """What a change in pod-resources means: the socket is made under another name and renamed."""
    if change.kind is Kind.RESCAN:
        return Trigger.SOCKET
    if change.name == KUBELET_SOCKET and change.kind in {Kind.APPEARED, Kind.VANISHED}:
        return Trigger.SOCKET
    return None


async def follow_device_plugins(watcher: DirectoryWatcher, paths: KubeletPaths, ask: Ask) -> None:
    """Ask for a refresh whenever the device manager's directory tells of something."""
    async for change in watcher.follow(paths.device_plugins):
        trigger = of_device_plugins(change)
        if trigger is not None:
            ask(trigger)


async def follow_pod_resources(watcher: DirectoryWatcher, paths: KubeletPaths, ask: Ask) -> None:
    """Ask for a refresh over a new connection whenever the PodResources socket comes or goes."""
    async for change in watcher.follow(paths.pod_resources):
        trigger = of_pod_resources(change)
        if trigger is not None:
            ask(trigger)


async def follow_pods_api(watcher: DirectoryWatcher, paths: KubeletPaths, retry: Callable[[], None]) -> None:
    """Call `retry` whenever the Pods API's socket may have come."""
    async for change in watcher.follow(paths.pods_api):
        if change.kind is Kind.RESCAN or (
            change.kind is Kind.APPEARED and change.name == paths.pods_api_socket.name
        ):
            retry()
