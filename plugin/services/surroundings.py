"""What the resources of a process share, and at what pace they work."""

from collections.abc import Callable
from dataclasses import dataclass, field

from daemon.directory import DirectoryWatcher
from daemon.paths import KubeletPaths
from plugin.core.identities import Identities
from plugin.core.lifecycle import Patience
from plugin.discovery.host import HostRoot
from plugin.services.clock import Clock
from plugin.services.pod_resources import PodResources


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between things that nothing calls for, and limits for things that may hang.

    `rescan`: between looks at the host, the net beneath inotify; `retry`: after a look that failed;
    `look_limit`: after which a look is given up; `look_pause`: between looks at least;
    `release`: between looks for tombstones that nobody holds; `verify`: between looks at whether the
    kubelet takes the resource for allocatable; `verify_again`: between two such doubts;
    `restart`: before a resource begins again after a defect, the last one repeats.
    """

    rescan: float = 30.0
    retry: float = 5.0
    look_limit: float = 20.0
    look_pause: float = 0.02
    release: float = 15.0
    verify: float = 10.0
    verify_again: float = 1.5
    restart: tuple[float, ...] = (0.1, 1.0, 5.0, 30.0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all resources of a process share. `token` gives eight characters it never gave before."""

    host: HostRoot
    paths: KubeletPaths
    watcher: DirectoryWatcher
    pod_resources: PodResources
    token: Callable[[], str]
    identities: Identities = field(default_factory=Identities)
    clock: Clock = field(default_factory=Clock)
    pace: Pace = field(default_factory=Pace)
    patience: Patience = field(default_factory=Patience)
