"""The pieces that alerts' texts and links are put together from: Prometheus' own templates.

A label that is missing reads as "", so each piece says something sensible without it.
"""

from typing import Final

NODE: Final = (
    "{{ with $labels.node }}node {{ . }}{{ else }}{{ $labels.instance }}{{ end }}"
    "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}"
)
"""node gpu-a-17 of cluster west"""
POD: Final = (
    "{{ $labels.namespace }}/{{ $labels.pod }}{{ with $labels.container }} (container {{ . }}){{ end }}"
)
"""training/resnet-x2x9k (container trainer)"""
DEVICE: Final = "{{ $labels.resource }} {{ $labels.device }}"
"""nvidia.com/gpu GPU-7c1f2a90-…"""
CLUSTER: Final = "{{ with $labels.cluster }} in cluster {{ . }}{{ end }}"


def link(dashboard: str, *labels: str) -> str:
    """A dashboard's path, with the variables of these names set to the alert's labels.

    A label that is missing selects all, and so does `cluster` where there is none.
    """
    values = "&".join(
        f"var-{label}={{{{ with $labels.{label} }}}}{{{{ . | urlquery }}}}{{{{ else }}}}$__all{{{{ end }}}}"
        for label in ("cluster", *labels)
    )
    return f"/d/devicelens-{dashboard}/devicelens-{dashboard}?{values}"


FLEET: Final = link("fleet")
FLEET_RESOURCE: Final = link("fleet", "resource")
NODE_BOARD: Final = link("node", "node")
NODE_RESOURCE: Final = link("node", "node", "resource")
DEVICE_BOARD: Final = link("device", "node", "resource", "device")
HOLDER_BOARD: Final = link("workload", "namespace", "resource")
