"""Recording rules that join holdings with the metrics of other exporters.

devicelens_device_identity_info says which physical device a device is, whatever its id: a plugin's, a share's, or that
of a claimed device.

DCGM exporter: every release has the GPU's UUID in the label UUID. UUIDs are unique, so the join needs no node name. Its
pci_bus_id has capital letters, which PromQL cannot compare with the kernel's form. Release 4.9.0 renamed the metrics
(DCGM_FI_DEV_GPU_UTIL in percent, DCGM_FI_DEV_GPU_UTIL_RATIO from 0 to 1); the rules read both. A MIG instance has its
GPU's UUID and GPU_I_ID there: an older MIG id (`MIG-GPU-…/1/0`) has both; for others the rules use the pod labels that
DCGM exporter puts on the instance's series.

AMD's device metrics exporter has the GPU's UUID if its configuration adds the label GPU_UUID, no PCI address, and always
pod, namespace and container: the rules join gpu_gfx_activity by UUID, else by container.

node_exporter: InfiniBand by the HCA's name; Ethernet by the interface's name, or by the device's PCI address and
node_ethtool_info (--collector.ethtool). The node is the target's label `node`, else the host name
(node_uname_info).

A device has one figure. Where several containers hold shares of it, each holding has the figure of the whole device
and scope="shared"; the rules never divide it.
"""

from typing import Final

from dashboards.rulefile import Group, Record

HOLDING: Final = "cluster, node, resource, device, parent, namespace, pod, container, workload_kind, workload"
"""The labels of a holding."""

_POD: Final = "cluster, namespace, pod, container"


def _holders(query: str) -> str:
    """The series with the pod labels of the other exporter, also where the scrape did not honour them."""
    for label in ("namespace", "pod", "container"):
        query = f'label_replace({query}, "{label}", "$1", "exported_{label}", "(.+)")'
    return query


_GPU: Final = 'UUID=~"GPU-.+", GPU_I_ID=""'
_INSTANCE: Final = 'UUID=~"GPU-.+", GPU_I_ID!=""'
_AMD: Final = '__name__=~"(amd_)?gpu_gfx_activity", gpu_partition_id=~"|0|NA"'
_DEVICE: Final = "cluster, node, resource, device"

_IDENTITY: Final = Record(
    "device:devicelens_identity:info",
    f"""
    topk by ({_DEVICE}) (
      1,
      group by ({_DEVICE}, uuid, pci_address) (
        devicelens_device_identity_info{{uuid!=""}} or devicelens_device_identity_info{{pci_address!=""}}
      )
    )
    """,
    "each device with the UUID or the PCI address that others know it by",
    internal=True,
)

# DCGM and amd-smi report a figure beyond the scale where they have none.
_UTILISATION: Final = (
    Record(
        "cluster_uuid:gpu_utilisation:ratio",
        f"""
        max by (cluster, uuid) (
          label_replace(
            (DCGM_FI_DEV_GPU_UTIL_RATIO{{{_GPU}}} <= 1)
            or on (cluster, UUID) ((DCGM_FI_DEV_GPU_UTIL{{{_GPU}}} <= 100) / 100)
            or on (cluster, UUID) (DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{_GPU}}} <= 1)
            or on (cluster, UUID) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_GPU}}} <= 1),
            "uuid", "$1", "UUID", "(.+)"
          )
          or on (cluster, uuid)
          label_replace(({{{_AMD}, gpu_uuid!=""}} <= 100) / 100, "uuid", "$1", "gpu_uuid", "(.+)")
        )
        """,
        "utilisation of a whole GPU, from DCGM exporter, or from AMD's with the label GPU_UUID",
        internal=True,
    ),
    Record(
        "cluster_uuid_instance:gpu_utilisation:ratio",
        f"""
        max by (cluster, uuid, gpu_instance) (
          label_replace(
            label_replace(
              (DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{_INSTANCE}}} <= 1)
              or on (cluster, UUID, GPU_I_ID) (DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_INSTANCE}}} <= 1),
              "uuid", "$1", "UUID", "(.+)"
            ),
            "gpu_instance", "$1", "GPU_I_ID", "(.+)"
          )
        )
        """,
        "utilisation of a MIG instance, from DCGM exporter",
        internal=True,
    ),
    Record(
        "cluster_namespace_pod_container:mig_utilisation:ratio",
        f"""
        avg by ({_POD}) (
          {
            _holders(
                f"((DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{{{_INSTANCE}}} <= 1) or on (cluster, UUID, GPU_I_ID) "
                f"(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_INSTANCE}}} <= 1))"
            )
        }
        )
        """,
        "mean utilisation of a container's MIG instances, from DCGM exporter and its pod labels",
        internal=True,
    ),
    Record(
        "cluster_namespace_pod_container:amd_utilisation:ratio",
        f"""
        avg by ({_POD}) (
          {_holders(f"({{{_AMD}}} <= 100) / 100")}
        )
        """,
        "mean utilisation of a container's AMD GPUs, from AMD's device metrics exporter",
        internal=True,
    ),
)

_HOLDINGS: Final = (
    Record(
        "holding:devicelens_gpu:info",
        f"""
        label_replace(
          holding:devicelens_owner:info
          * on ({_DEVICE}) group_left (uuid)
          device:devicelens_identity:info{{uuid!~"|MIG-.+"}}
          or on ({HOLDING})
          label_replace(holding:devicelens_owner:info{{parent=~"GPU-.+"}}, "uuid", "$1", "parent", "(.+)"),
          "gpu_instance", "$1", "device", "MIG-GPU-[^/]+/([0-9]+)/.+"
        )
        """,
        "holdings of GPUs with the GPU's `uuid`, and the `gpu_instance` where the id names one",
        internal=True,
    ),
    Record(
        "holding:devicelens_utilisation:ratio",
        f"""
        max by ({HOLDING}, scope) (
          label_replace(
            holding:devicelens_gpu:info{{gpu_instance!=""}}
            * on (cluster, uuid, gpu_instance) group_left ()
            cluster_uuid_instance:gpu_utilisation:ratio,
            "scope", "partition", "", ""
          )
          or on ({HOLDING})
          label_replace(
            (
              holding:devicelens_owner:info
              and on ({_DEVICE})
              device:devicelens_identity:info{{uuid=~"MIG-.+"}}
            )
            * on ({_POD}) group_left ()
            cluster_namespace_pod_container:mig_utilisation:ratio,
            "scope", "container", "", ""
          )
          or on ({HOLDING})
          label_replace(
            label_replace(
              holding:devicelens_gpu:info
              * on (cluster, uuid) group_left ()
              cluster_uuid:gpu_utilisation:ratio,
              "scope", "device", "", ""
            ),
            "scope", "shared", "parent", ".+"
          )
          or on ({HOLDING})
          label_replace(
            holding:devicelens_owner:info{{resource=~"amd[.]com/.+|gpu[.]amd[.]com"}}
            * on ({_POD}) group_left ()
            cluster_namespace_pod_container:amd_utilisation:ratio,
            "scope", "container", "", ""
          )
        )
        """,
        "utilisation of a holding, from 0 to 1, with its `scope` (see above)",
    ),
    Record(
        "cluster_resource:devicelens_utilisation:avg",
        """
        avg by (cluster, resource) (
          max by (cluster, node, resource, parent) (holding:devicelens_utilisation:ratio{scope="shared"})
          or
          max by (cluster, node, resource, device) (holding:devicelens_utilisation:ratio{scope!="shared"})
        )
        """,
        "mean utilisation of the held devices of a resource; a shared device counts once",
    ),
    Record(
        "cluster_namespace_resource:devicelens_utilisation:avg",
        """
        avg by (cluster, namespace, resource) (
          max by (cluster, node, namespace, resource, parent) (
            holding:devicelens_utilisation:ratio{scope="shared"}
          )
          or
          max by (cluster, node, namespace, resource, device) (
            holding:devicelens_utilisation:ratio{scope!="shared"}
          )
        )
        """,
        "the same for the holdings of a namespace",
    ),
)

_NODE_OF_EXPORTER: Final = Record(
    "instance:node_exporter_node:info",
    """
    topk by (cluster, job, instance) (
      1,
      group by (cluster, job, instance, node) (node_uname_info{node!=""})
      or on (cluster, job, instance)
      group by (cluster, job, instance, node) (
        label_replace(node_uname_info{node=""}, "node", "$1", "nodename", "(.+)")
      )
    )
    """,
    "the node of a node_exporter",
    internal=True,
)


_KEYS: Final = Record(
    "holding:devicelens_key:info",
    f"""
    label_replace(
      label_replace(
        label_replace(holding:devicelens_owner:info, "key", "$1", "device", "(.+)"),
        "key", "$1", "parent", "(.+)"
      ),
      "by", "name", "", ""
    )
    or
    label_replace(
      holding:devicelens_owner:info
      * on ({_DEVICE}) group_left (key)
      label_replace(
        device:devicelens_identity:info{{pci_address!=""}}, "key", "$1", "pci_address", "(.+)"
      ),
      "by", "pci_address", "", ""
    )
    """,
    "holdings with the name of the physical device, and with its PCI address",
    internal=True,
)

_VIRTUAL: Final = (
    "lo|veth.*|cali.*|lxc.*|cni.*|flannel.*|docker.*|br-.*|virbr.*|vxlan.*|geneve.*|tap.*|tunl.*|ifb.*"
)
"""Virtual interfaces: no device plugin allocates them, and most interfaces of a node are virtual."""


def _network(direction: str, infiniband: str, ethernet: str) -> tuple[Record, ...]:
    of_hcas = f"instance_device:{infiniband.removesuffix('_total')}:rate5m"
    of_interfaces = f"instance_device:{ethernet.removesuffix('_total')}:rate5m"
    of_devices = f"node_device:devicelens_network_{direction}_bytes:rate5m"
    return (
        Record(
            of_interfaces,
            f"""
        sum by (cluster, job, instance, device) (rate({ethernet}{{device!~"{_VIRTUAL}"}}[5m]))
        * on (cluster, job, instance) group_left (node) instance:node_exporter_node:info
        """,
            f"bytes per second that a node's interfaces {direction}, without virtual ones",
            internal=True,
        ),
        Record(
            of_hcas,
            f"""
        sum by (cluster, job, instance, device) (rate({infiniband}[5m]))
        * on (cluster, job, instance) group_left (node) instance:node_exporter_node:info
        """,
            f"bytes per second that a node's InfiniBand HCAs {direction} on all ports",
            internal=True,
        ),
        Record(
            of_devices,
            f"""
        max by (cluster, node, device) (
          (
            {of_hcas}
            or {of_interfaces}
            or label_replace(
              label_replace({of_interfaces}, "interface", "$1", "device", "(.+)")
              * on (cluster, job, instance, device) group_left (bus_info)
              topk by (cluster, job, instance, device) (
                1, group by (cluster, job, instance, device, bus_info) (node_ethtool_info{{bus_info!=""}})
              ),
              "device", "$1", "bus_info", "(.+)"
            )
          )
          and on (cluster, node, device)
          label_replace(group by (cluster, node, key) (holding:devicelens_key:info), "device", "$1", "key", "(.+)")
        )
        """,
            f"bytes per second that held devices {direction}: HCAs and interfaces by name, interfaces by PCI address",
            internal=True,
        ),
        Record(
            f"holding:devicelens_network_{direction}_bytes:rate5m",
            f"""
        max by ({HOLDING}, scope) (
          label_replace(
            label_replace(
              holding:devicelens_key:info{{by="name"}}
              * on (cluster, node, key) group_left ()
              label_replace({of_devices}, "key", "$1", "device", "(.+)")
              or on ({HOLDING})
              holding:devicelens_key:info{{by="pci_address"}}
              * on (cluster, node, key) group_left ()
              label_replace({of_devices}, "key", "$1", "device", "(.+)"),
              "scope", "device", "", ""
            ),
            "scope", "shared", "parent", ".+"
          )
        )
        """,
            f"bytes per second that the device of a holding {direction}s",
        ),
    )


GROUPS: Final = (
    Group("devicelens-utilisation", (_IDENTITY, *_UTILISATION, *_HOLDINGS)),
    Group(
        "devicelens-network",
        (
            _NODE_OF_EXPORTER,
            _KEYS,
            *_network(
                "receive",
                "node_infiniband_port_data_received_bytes_total",
                "node_network_receive_bytes_total",
            ),
            *_network(
                "transmit",
                "node_infiniband_port_data_transmitted_bytes_total",
                "node_network_transmit_bytes_total",
            ),
        ),
    ),
)
