"""Whether the node's container runtime injects CDI devices, by its configuration below --host-root.

containerd 1.7 injects them with `enable_cdi`, containerd 2.0 and CRI-O without a switch. An older containerd
starts the container without its devices and reports nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from plugin.config.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.discovery.sysfs_tree import SysfsTree
from runtime.preflight import Observation

CONTAINERD: Final = ("/etc/containerd/config.toml", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
CRIO: Final = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d")
DEFAULT_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
MAX_CONFIG: Final = 256 * 1024
"""Bytes of a configuration of containerd."""

_PLUGINS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_NAME: Final = "cdi_runtime"
_UNKNOWN: Final = "not known: containerd 1.7 with enable_cdi, containerd 2.0, or CRI-O is needed"


def observe_cdi(host: HostRoot, plans: Iterable[ResourcePlan]) -> tuple[Observation, ...]:
    """What is known of CDI in the container runtime; nothing where no resource uses CDI. Blocking."""
    users = [plan for plan in plans if plan.cdi is not None or plan.allocate.cdi]
    if not users:
        return ()
    directories = frozenset(plan.cdi.directory for plan in users if plan.cdi is not None)
    sysfs = SysfsTree(host)
    for path in CONTAINERD:
        try:
            text = sysfs.read(path, MAX_CONFIG + 1)
        except OSError:
            continue
        return (_by_containerd(path, text, directories),)
    if any(_exists(host, path) for path in CRIO):
        return (Observation(_NAME, "CRI-O, which has CDI"),)
    return (Observation(_NAME, _UNKNOWN),)


def _by_containerd(path: str, text: str, directories: frozenset[str]) -> Observation:
    if len(text) > MAX_CONFIG:
        return Observation(_NAME, f"not known: {path} has more than {MAX_CONFIG} bytes")
    import tomllib  # noqa: PLC0415 -- only resources with CDI need it

    try:
        config = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return Observation(_NAME, f"not known: {path} cannot be read: {error}")
    plugin = next((found for name in _PLUGINS if (found := _table(_table(config, "plugins"), name))), {})
    enabled = plugin.get("enable_cdi")
    if enabled is False:
        hint = f"set enable_cdi = true in {path}: containers start without their CDI devices"
        return Observation(_NAME, f"off in {path}", hint)
    listed = plugin.get("cdi_spec_dirs")
    read = {_real(each) for each in (listed if isinstance(listed, list) else DEFAULT_DIRECTORIES)}
    unread = sorted(directory for directory in directories if _real(directory) not in read)
    if unread:
        hint = f"add {', '.join(unread)} to cdi_spec_dirs in {path}, or change cdi.directory"
        return Observation(_NAME, f"does not read {', '.join(unread)}", hint)
    if enabled is True or config.get("version") == 3:
        return Observation(_NAME, f"on in {path}")
    return Observation(_NAME, f"not known: {path} does not set enable_cdi, which containerd 1.7 needs")


def _table(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def _real(directory: object) -> str:
    """A directory of the host, spelled in one way: /var/run is a link to /run."""
    text = str(directory).rstrip("/")
    return f"/run/{text.removeprefix('/var/run/')}" if text.startswith("/var/run/") else text


def _exists(host: HostRoot, path: str) -> bool:
    try:
        return host.exists(path)
    except OSError:
        return False
