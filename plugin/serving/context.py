"""What the resources of a process share, and at what pace they work."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kubelet.paths import KubeletPaths
from plugin.devices.claims import CdiNames, Identities
from plugin.discovery.host import HostRoot
from plugin.discovery.uevents import Uevents
from plugin.serving.faults import Listening
from plugin.serving.lifecycle import Patience
from plugin.serving.ownership import Ownership
from plugin.serving.pod_resources import PodResources
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between things that nothing calls for, and limits for things that may hang.

    `rescan`: between looks at the host, the net beneath inotify; `retry`: after a look that failed;
    `look_limit`: after which a look is given up; `look_pause`: between looks at least;
    `settle`: after a uevent, before another look; `first_answers`: for which registering waits for the
    probes at most; `claim_turn`: for earlier resources to claim what is theirs;
    `release`: between looks for tombstones that nobody holds; `verify`: between looks at whether the
    kubelet takes the resource for allocatable; `verify_again`: between two such doubts;
    `restart`: before a resource begins again after a defect, the last one repeats.
    """

    rescan: float = 30.0
    retry: float = 5.0
    look_limit: float = 20.0
    look_pause: float = 0.02
    settle: float = 0.5
    first_answers: float = 6.0
    claim_turn: float = 5.0
    release: float = 15.0
    verify: float = 10.0
    verify_again: float = 1.5
    restart: tuple[float, ...] = (0.1, 1.0, 5.0, 30.0)


Way = Literal["socket", "registry"]
"""How the kubelet is told of a resource: by a call to its socket, or by a socket in plugins_registry."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all resources of a process share.

    `token` gives eight characters it never gave before; `spread` numbers from 0 to 1.
    """

    host: HostRoot
    paths: KubeletPaths
    watcher: DirectoryWatcher
    pod_resources: PodResources
    token: Callable[[], str]
    uevents: Uevents = field(default_factory=Uevents)
    listening: Listening = field(default_factory=lambda: Listening(lambda _: None))
    ownership: Ownership = field(default_factory=Ownership)
    spread: Callable[[], float] = random.random
    identities: Identities = field(default_factory=Identities)
    cdi_names: CdiNames = field(default_factory=CdiNames)
    clock: Clock = field(default_factory=Clock)
    pace: Pace = field(default_factory=Pace)
    patience: Patience = field(default_factory=Patience)
    way: Way = "socket"
