"""Recording rules of the metrics of the exporter and the plugin.

During a rolling update two exporters of one node are scraped for a while, so every rule reduces to one series for each
object before it counts. Joins take one series by topk where labels should be unique and may not be (an address that
moves to another node): a duplicate would fail the join for the whole fleet. `cluster` is in every list of labels and
may be missing.
"""

from typing import Final

from dashboards.rulefile import Group, Record

_TARGETS: Final = (
    Record(
        "instance:devicelens_node:info",
        """
        topk by (cluster, job, instance) (
          1,
          group by (cluster, job, instance, node) (
            devicelens_resource_devices
            or devicelens_anomaly_info{kind="stale"}
            or devicelens_allocations_total
          )
          or on (cluster, job, instance)
          group by (cluster, job, instance, node) (
            devicelens_build_info{node!=""}
            or devicelens_plugin_config_last_reload_successful{node!=""}
          )
          or on (cluster, job, instance)
          group by (cluster, job, instance, node) (
            devicelens_plugin_config_last_reload_successful{pod!=""}
            * on (cluster, namespace, pod) group_left (node)
            topk by (cluster, namespace, pod) (
              1,
              group by (cluster, namespace, pod, node) (
                devicelens_build_info{pod!=""}
                * on (cluster, job, instance) group_left (node) instance:devicelens_node:info
              )
            )
          )
          or on (cluster, job, instance)
          (instance:devicelens_node:info and on (cluster, job, instance) up)
        )
        """,
        "the node of a devicelens target: the exporter's label, else the target's own label `node`, else that of the "
        "exporter in the same pod; kept for as long as Prometheus has the target",
        internal=True,
    ),
    Record(
        "instance:devicelens_exporter_up:last",
        """
        min by (cluster, job, instance) (up)
        and on (cluster, job, instance) (
          group by (cluster, job, instance) (devicelens_build_info)
          or instance:devicelens_exporter_up:last
        )
        """,
        "`up` of targets that have exposed an exporter's metrics, whatever their job; kept likewise",
        internal=True,
    ),
    Record(
        "instance:devicelens_plugin_up:last",
        """
        min by (cluster, job, instance) (up)
        and on (cluster, job, instance) (
          group by (cluster, job, instance) (devicelens_plugin_config_last_reload_successful)
          or instance:devicelens_plugin_up:last
        )
        """,
        "the same for plugins",
        internal=True,
    ),
    Record(
        "node:devicelens_up:max",
        """
        max by (cluster, node) (
          devicelens_up * on (cluster, job, instance) group_left (node) instance:devicelens_node:info
        )
        """,
        "1 where a node's mapping is fresh",
        internal=True,
    ),
    Record(
        "node:devicelens_last_refresh_success_timestamp_seconds:max",
        """
        max by (cluster, node) (
          devicelens_last_refresh_success_timestamp_seconds
          * on (cluster, job, instance) group_left (node) instance:devicelens_node:info
        )
        """,
        "when the kubelet of a node last gave a good answer, in Unix time",
        internal=True,
    ),
)

_COUNTS: Final = tuple(
    Record(
        f"node_resource:devicelens_{what}:max",
        f"max by (cluster, node, resource) (devicelens_resource_{what})",
        meaning,
        internal=True,
    )
    for what, meaning in (
        ("devices", "devices of a resource on a node"),
        ("allocatable_devices", "those that are allocatable, held or free"),
        ("allocated_devices", "those that are held"),
        ("unhealthy_devices", "those that are known and not allocatable"),
    )
)

_HOLDINGS: Final = (
    Record(
        "device:devicelens_physical:info",
        """
        topk by (cluster, node, resource, device) (
          1,
          group by (cluster, node, resource, device, parent) (
            devicelens_device_info{parent!=""}
            or label_replace(devicelens_device_info{parent=""}, "parent", "$1", "device", "(.+)")
          )
        )
        """,
        "each device with the physical device behind it in `parent`: its parent, or the device itself",
        internal=True,
    ),
    Record(
        "holding:devicelens_owner:info",
        """
        group by (
          cluster, node, resource, device, parent, namespace, pod, container, workload_kind, workload
        ) (
          devicelens_device_owner_info
          * on (cluster, node, namespace, pod) group_left (workload_kind, workload)
          topk by (cluster, node, namespace, pod) (
            1, group by (cluster, node, namespace, pod, workload_kind, workload) (devicelens_pod_info)
          )
          or on (cluster, node, resource, device, namespace, pod, container)
          devicelens_device_owner_info
        )
        """,
        "each holder of each device, with its workload where that is known",
    ),
    Record(
        "node_namespace_resource:devicelens_held_devices:count",
        """
        count by (cluster, node, namespace, resource) (
          group by (cluster, node, namespace, resource, device) (holding:devicelens_owner:info)
        )
        or
        sum by (cluster, node, namespace, resource) (
          max by (cluster, node, namespace, pod, container, resource) (devicelens_container_devices)
        )
        """,
        "devices that a namespace holds on a node; a device that two namespaces share counts for each",
        internal=True,
    ),
    Record(
        "node_resource:devicelens_free_devices:sum",
        """
        sum by (cluster, node, resource) (
          max by (cluster, node, resource, device) (devicelens_device_healthy)
          unless on (cluster, node, resource, device)
          devicelens_device_owner_info
        )
        or
        clamp_min(
          node_resource:devicelens_allocatable_devices:max - node_resource:devicelens_allocated_devices:max, 0
        )
        """,
        "devices that are allocatable and free",
        internal=True,
    ),
)

_FRAGMENTS: Final = (
    Record(
        "node_resource_numa:devicelens_free_devices:count",
        """
        count by (cluster, node, resource, numa_node) (
          group by (cluster, node, resource, device, numa_node) (devicelens_device_info)
          and on (cluster, node, resource, device)
          (devicelens_device_healthy == 1)
          unless on (cluster, node, resource, device)
          devicelens_device_owner_info
        )
        """,
        'free devices by NUMA node ("" where that is unknown)',
        internal=True,
    ),
    Record(
        "node_resource:devicelens_stranded_devices:sum",
        """
        (
          node_resource:devicelens_free_devices:sum
          - max by (cluster, node, resource) (node_resource_numa:devicelens_free_devices:count)
        )
        or (node_resource:devicelens_free_devices:sum == 0)
        """,
        "free devices outside the node's largest group of free devices on one NUMA node",
        internal=True,
    ),
    Record(
        "node_resource:devicelens_parents:count",
        """
        count by (cluster, node, resource) (
          group by (cluster, node, resource, parent) (devicelens_device_info{parent!=""})
        )
        """,
        "physical devices behind shares and slices",
        internal=True,
    ),
    Record(
        "node_resource:devicelens_free_parents:count",
        """
        count by (cluster, node, resource) (
          group by (cluster, node, resource, parent) (devicelens_device_info{parent!=""})
          unless on (cluster, node, resource, parent)
          devicelens_device_owner_info
          unless on (cluster, node, resource, parent)
          (
            devicelens_device_info
            and on (cluster, node, resource, device) (devicelens_device_healthy == 0)
          )
        )
        or node_resource:devicelens_parents:count * 0
        """,
        "physical devices of which every share is healthy and free",
        internal=True,
    ),
)

_FLEET: Final = (
    *(
        Record(
            f"cluster_resource:devicelens_{what}:sum",
            f"sum by (cluster, resource) (node_resource:devicelens_{what}:{operation})",
            meaning,
        )
        for what, operation, meaning in (
            ("devices", "max", "devices of a resource"),
            ("allocatable_devices", "max", "allocatable devices"),
            ("allocated_devices", "max", "held devices"),
            ("unhealthy_devices", "max", "unhealthy devices"),
            ("free_devices", "sum", "allocatable and free devices"),
            ("stranded_devices", "sum", "free devices outside their node's largest group on one NUMA node"),
            ("parents", "count", "physical devices behind shares and slices"),
            ("free_parents", "count", "physical devices with every share healthy and free"),
        )
    ),
    Record(
        "cluster_resource:devicelens_largest_free_group:max",
        """
        max by (cluster, resource) (node_resource_numa:devicelens_free_devices:count)
        or cluster_resource:devicelens_free_devices:sum == 0
        """,
        "the largest request that one NUMA node of any node can serve",
    ),
    Record(
        "cluster_namespace_resource:devicelens_held_devices:sum",
        """
        sum by (cluster, namespace, resource) (node_namespace_resource:devicelens_held_devices:count)
        """,
        "devices that a namespace holds",
    ),
    Record(
        "cluster_namespace_resource:devicelens_held_devices:ratio",
        """
        cluster_namespace_resource:devicelens_held_devices:sum
        / on (cluster, resource) group_left ()
        (cluster_resource:devicelens_devices:sum > 0)
        """,
        "a namespace's share of all devices of a resource",
    ),
    # Exactly 60 samples: a closed interval of one hour would have 61 where an evaluation falls on its left end.
    Record(
        "cluster_namespace_resource:devicelens_held_device_seconds:increase1h",
        """
        sum_over_time(cluster_namespace_resource:devicelens_held_devices:sum[59m59s999ms:1m]) * 60
        """,
        "device-seconds that a namespace held in the last hour, sampled each minute",
    ),
)

GROUPS: Final = (
    Group("devicelens-targets", _TARGETS),
    Group("devicelens-nodes", (*_COUNTS, *_HOLDINGS, *_FRAGMENTS)),
    Group("devicelens-fleet", _FLEET),
)
