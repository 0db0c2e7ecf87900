"""Recording rules that join holdings with what others' exporters measure.

DCGM exporter: a GPU's UUID is in the label UUID of every release (the node's is called Hostname before 4.8.3
and hostname since), and it is the device's id, or its parent's for a replica (`GPU-…::0`) or an older MIG id
(`MIG-GPU-…/1/0`): UUIDs are unique, so no node's name is needed. Its names changed with 4.9.0
(DCGM_FI_DEV_GPU_UTIL in percent, DCGM_FI_DEV_GPU_UTIL_RATIO from 0 to 1); both are read. A newer MIG id names no
GPU: there the pod that DCGM exporter itself puts on the instance's series is taken.

AMD's device metrics exporter tells neither PCI address nor uuid, but always pod, namespace and container: its
gpu_gfx_activity is joined by container.

node_exporter: InfiniBand by the HCA's name; Ethernet by the interface's name, or, where the device is a PCI
address, by node_ethtool_info (--collector.ethtool). Its node is the target's label `node`, else the host's own
name (node_uname_info).

One device's figure is one figure: where several containers hold shares of it, each is shown the whole of it,
labelled scope="shared"; it is never divided.
"""

from typing import Final

from dashboards.model import Group, Record

HOLDING: Final = "cluster, node, resource, device, parent, namespace, pod, container, workload_kind, workload"
"""The labels of a holding."""

_POD: Final = "cluster, namespace, pod, container"


def _holders(query: str) -> str:
    """The pod that another exporter tells, also where the scrape did not honour its labels."""
    for label in ("namespace", "pod", "container"):
        query = f'label_replace({query}, "{label}", "$1", "exported_{label}", "(.+)")'
    return query


_GPU: Final = 'UUID=~"GPU-.+", GPU_I_ID=""'
_INSTANCE: Final = 'UUID=~"GPU-.+", GPU_I_ID!=""'

# Figures beyond the scale are DCGM's and amd-smi's way to say that there is none.
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
        )
        """,
        "how busy a whole NVIDIA GPU is, by DCGM exporter",
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
        "how busy a MIG instance is, by DCGM exporter",
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
        "how busy a container's MIG instances are on average, by DCGM exporter and the pods it tells",
    ),
    Record(
        "cluster_namespace_pod_container:amd_utilisation:ratio",
        f"""
        avg by ({_POD}) (
          {_holders('({__name__=~"(amd_)?gpu_gfx_activity", gpu_partition_id=~"|0|NA"} <= 100) / 100')}
        )
        """,
        "how busy a container's AMD GPUs are on average, by AMD's device metrics exporter",
    ),
)

_HOLDINGS: Final = (
    Record(
        "holding:devicelens_gpu:info",
        """
        label_replace(
          label_replace(
            label_replace(
              holding:devicelens_owner:info{device=~"GPU-.+|MIG-GPU-.+"}
              or holding:devicelens_owner:info{parent=~"GPU-.+"},
              "uuid", "$1", "device", "(GPU-.+)"
            ),
            "uuid", "$1", "parent", "(GPU-.+)"
          ),
          "gpu_instance", "$1", "device", "MIG-GPU-[^/]+/([0-9]+)/.+"
        )
        """,
        "holdings of NVIDIA GPUs with the GPU's `uuid`, and the `gpu_instance` where the id names one",
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
            holding:devicelens_owner:info{{device=~"MIG-.+"}}
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
            holding:devicelens_owner:info{{resource=~"amd[.]com/.+"}}
            * on ({_POD}) group_left ()
            cluster_namespace_pod_container:amd_utilisation:ratio,
            "scope", "container", "", ""
          )
        )
        """,
        "how busy what a container holds is, from 0 to 1. `scope` says what was measured: the `device` itself, a "
        "`partition` of it, the whole of a device that is `shared`, or all of the `container`'s together",
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
        "how busy the held devices of a resource are on average; a shared device counts once",
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
        "the same of what a namespace holds",
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
    "which node a node_exporter is on",
)


_VIRTUAL: Final = (
    "lo|veth.*|cali.*|lxc.*|cni.*|flannel.*|docker.*|br-.*|virbr.*|vxlan.*|geneve.*|tap.*|tunl.*|ifb.*"
)
"""Interfaces that nobody gets from a device plugin: most of those that a node with pods has."""


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
            f"bytes a second that a node's interfaces {direction}, without virtual ones",
        ),
        Record(
            of_hcas,
            f"""
        sum by (cluster, job, instance, device) (rate({infiniband}[5m]))
        * on (cluster, job, instance) group_left (node) instance:node_exporter_node:info
        """,
            f"bytes a second that a node's InfiniBand HCAs {direction} on all ports",
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
          (
            group by (cluster, node, device) (holding:devicelens_owner:info{{parent=""}})
            or label_replace(
              group by (cluster, node, parent) (holding:devicelens_owner:info{{parent!=""}}),
              "device", "$1", "parent", "(.+)"
            )
          )
        )
        """,
            f"bytes a second that held devices {direction}: HCAs and interfaces by name, and interfaces by PCI address",
        ),
        Record(
            f"holding:devicelens_network_{direction}_bytes:rate5m",
            f"""
        max by ({HOLDING}, scope) (
          label_replace(
            label_replace(
              label_replace(
                label_replace(holding:devicelens_owner:info, "key", "$1", "device", "(.+)"),
                "key", "$1", "parent", "(.+)"
              )
              * on (cluster, node, key) group_left ()
              label_replace({of_devices}, "key", "$1", "device", "(.+)"),
              "scope", "device", "", ""
            ),
            "scope", "shared", "parent", ".+"
          )
        )
        """,
            "the same for each holder; `scope` as above",
        ),
    )


GROUPS: Final = (
    Group("devicelens-utilisation", (*_UTILISATION, *_HOLDINGS)),
    Group(
        "devicelens-network",
        (
            _NODE_OF_EXPORTER,
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
