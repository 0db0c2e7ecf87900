"""What the resources of a plugin process share, and the times that they keep."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from kubelet.paths import KubeletPaths
from plugin.devices.claims import NamesInUse
from plugin.discovery.host import HostRoot
from plugin.discovery.uevents import Uevents
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher

if TYPE_CHECKING:
    # The dry run imports Allocate, and so this module, without gRPC and aiohttp.
    from plugin.serving.kubelet_state import KubeletState
    from plugin.serving.ownership import DeviceOwnership
    from plugin.serving.prober import FaultEvents


class Pace(Struct, frozen=True):
    """Intervals and limits, in seconds.

    - `rescan`: between full scans, in case inotify or a uevent misses a change; `retry`: after a failed scan
    - `scan_limit`: of one scan; `scan_pause`: at least between two scans
    - `settle`: after a uevent until the second scan, when udev has made its links
    - `first_answers`: registration waits for the first answers of all probes at most this long
    - `claim_turn`: a resource waits for the claims of earlier ones at most this long
    - `release`: between checks for tombstones, files and holdings that no pod needs any more
    - `confirm`: from Allocate until List is checked for the holder
    - `verify`: between checks that the kubelet has devices of the resource allocatable; `verify_again`:
      until a failed check is repeated
    - `restart`: before a resource restarts after a defect, by the number of restarts in a row
    """

    rescan: float = 30.0
    retry: float = 5.0
    scan_limit: float = 20.0
    scan_pause: float = 0.02
    settle: float = 0.5
    first_answers: float = 6.0
    claim_turn: float = 5.0
    release: float = 15.0
    confirm: float = 1.0
    verify: float = 10.0
    verify_again: float = 1.5
    restart: tuple[float, ...] = (0.1, 1.0, 5.0, 30.0)


class Patience(Struct, frozen=True):
    """Seconds after which the plugin registers again although the kubelet accepted the registration.

    `no_stream`: the kubelet opened no ListAndWatch stream; `lost_stream`: the last one ended; `refused`:
    the kubelet refused a socket that it found in plugins_registry.
    """

    no_stream: float = 5.0
    lost_stream: float = 1.0
    refused: float = 5.0


RegistrationMethod = Literal["socket", "registry"]
"""`socket`: call Register on the kubelet's socket; `registry`: offer a socket in plugins_registry."""


class PluginContext(Struct, frozen=True):
    """Shared by all resources of a process.

    `token` returns eight characters, different at each call; `spread` returns random numbers from 0 to 1.
    """

    host: HostRoot
    paths: KubeletPaths
    watcher: DirectoryWatcher
    kubelet: "KubeletState"
    ownership: "DeviceOwnership"
    fault_events: "FaultEvents"
    token: Callable[[], str]
    uevents: Uevents = field(default_factory=Uevents)
    spread: Callable[[], float] = random.random
    device_ids: NamesInUse = field(default_factory=NamesInUse)
    cdi_names: NamesInUse = field(default_factory=NamesInUse)
    clock: Clock = field(default_factory=Clock)
    pace: Pace = field(default_factory=Pace)
    patience: Patience = field(default_factory=Patience)
    method: RegistrationMethod = "socket"
