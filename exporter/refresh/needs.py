"""What the exporter needs of the node: said at its start, with what is lacking and what to do."""

from pathlib import Path

from kubelet.paths import KubeletPaths
from runtime.preflight import Need, Use


def needs(paths: KubeletPaths, *, pods_source: str, history: Path | None) -> tuple[Need, ...]:
    """By --kubelet.root, --pods.source and --history.path."""
    found = [
        Need(
            "pod_resources",
            paths.pod_resources_socket,
            Use.CONNECT,
            "is the kubelet up, and does --kubelet.root name its root directory?",
        ),
        Need(
            "device_plugins",
            paths.device_plugins,
            Use.LIST,
            f"mount the node's {paths.device_plugins}: else an allocation shows at the next poll only",
        ),
    ]
    if pods_source in {"auto", "pods-api"}:
        found.append(
            Need(
                "pods_api",
                paths.pods_api_socket,
                Use.CONNECT,
                "switch on the kubelet's gate PodsAPI (1.36 and on), or take --pods.source apiserver",
                optional=pods_source == "auto",
            )
        )
    if history is not None:
        found.append(
            Need(
                "history",
                history.absolute().parent,
                Use.WRITE,
                "mount a directory that can be written to (deploy/components/history)",
                made=True,
            )
        )
    return tuple(found)
