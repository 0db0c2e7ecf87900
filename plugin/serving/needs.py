"""What the plugin needs of the node: said at its start, with what is lacking and what to do."""

from collections.abc import Iterable

from kubelet.paths import KubeletPaths
from plugin.config.looked_into import looked_into
from plugin.config.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.serving.context import Way
from runtime.preflight import Need, Use


def needs(
    paths: KubeletPaths, host: HostRoot, plans: Iterable[ResourcePlan], *, way: Way
) -> tuple[Need, ...]:
    """By --kubelet.root, --host-root, --kubelet.registration and what the configuration offers."""
    mounted = "mount the node's {0} there: the plugin's own sockets are made in it"
    if way == "socket":
        registered = [
            Need("device_plugins", paths.device_plugins, Use.WRITE, mounted.format(paths.device_plugins)),
            Need(
                "registration",
                paths.registration_socket,
                Use.CONNECT,
                "is the kubelet up, and does --kubelet.root name its root directory?",
            ),
        ]
    else:
        registered = [
            Need(
                "plugins_registry", paths.plugins_registry, Use.WRITE, mounted.format(paths.plugins_registry)
            ),
            # Its record of what it advertised is kept beside others' sockets in either case.
            Need("device_plugins", paths.device_plugins, Use.WRITE, mounted.format(paths.device_plugins)),
        ]
    plans = tuple(plans)
    directories = sorted({plan.cdi.directory for plan in plans if plan.cdi is not None})
    return (
        *registered,
        Need(
            "pod_resources",
            paths.pod_resources_socket,
            Use.CONNECT,
            "is the kubelet up? Without it a device that has gone is kept for long",
        ),
        Need("host_root", host.here("/"), Use.LIST, "say --host-root, and mount there what is looked into"),
        *(
            Need(
                place.removeprefix("/").replace("/", "_"),
                host.here(place),
                Use.LIST,
                f"mount the node's {place} below --host-root (deploy/components/hardware)",
            )
            for place in sorted({place for plan in plans for s in plan.sources for place in looked_into(s)})
        ),
        *(
            Need(
                "cdi" if len(directories) == 1 else f"cdi_{number}",
                host.here(directory),
                Use.WRITE,
                f"mount the node's {directory} below --host-root, to be written to",
                made=True,
            )
            for number, directory in enumerate(directories, start=1)
        ),
    )
