"""Recording rules of the exporter's and the plugin's own families.

During a rolling update two exporters of one node tell for a while, so everything is brought to one series for
each thing before it is counted; and what should be one and is two (an address that has just passed to another node)
must not fail a whole fleet's join, so one is taken. `cluster` is in every list of labels: it costs nothing where there is none.
"""

from typing import Final

from dashboards.model import Group, Record

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
        "which node a target of devicelens is on: what the exporter says, else the target's own label `node`, else "
        "that of the exporter in the same pod; remembered for as long as Prometheus knows the target",
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
        "`up` of what has told an exporter's families, whatever its job is called; remembered likewise",
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
        "the same of plugins",
    ),
    Record(
        "node:devicelens_up:max",
        """
        max by (cluster, node) (
          devicelens_up * on (cluster, job, instance) group_left (node) instance:devicelens_node:info
        )
        """,
        "1 where a node's mapping is what the kubelet says",
    ),
    Record(
        "node:devicelens_last_refresh_success_timestamp_seconds:max",
        """
        max by (cluster, node) (
          devicelens_last_refresh_success_timestamp_seconds
          * on (cluster, job, instance) group_left (node) instance:devicelens_node:info
        )
        """,
        "when the kubelet of a node last gave a good answer, in unix time",
    ),
)

_COUNTS: Final = tuple(
    Record(
        f"node_resource:devicelens_{what}:max",
        f"max by (cluster, node, resource) (devicelens_resource_{what})",
        says,
    )
    for what, says in (
        ("devices", "devices of a resource on a node"),
        ("allocatable_devices", "those that the kubelet counts as allocatable, held or free"),
        ("allocated_devices", "those that are held"),
        ("unhealthy_devices", "those that are known and not allocatable"),
    )
)

_HOLDINGS: Final = (
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
        "each holder of each device, once, with its workload where it is known",
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
    ),
    Record(
        "node_resource:devicelens_free_devices:sum",
        """
        sum by (cluster, node, resource) (
          max by (cluster, node, resource, device) (devicelens_device_healthy{pod=""})
        )
        or
        clamp_min(
          node_resource:devicelens_allocatable_devices:max - node_resource:devicelens_allocated_devices:max, 0
        )
        """,
        "devices that are allocatable and that nobody holds",
    ),
)

_FRAGMENTS: Final = (
    Record(
        "node_resource_numa:devicelens_free_devices:count",
        """
        count by (cluster, node, resource, numa_node) (
          group by (cluster, node, resource, device, numa_node) (devicelens_device_info)
          and on (cluster, node, resource, device)
          (max by (cluster, node, resource, device) (devicelens_device_healthy{pod=""}) == 1)
        )
        """,
        'free devices by NUMA node ("" where it is not known)',
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
        "free devices beyond the largest number that is free on one NUMA node: no aligned request gets them "
        "together with those",
    ),
    Record(
        "node_resource:devicelens_parents:count",
        """
        count by (cluster, node, resource) (
          group by (cluster, node, resource, parent) (devicelens_device_info{parent!=""})
        )
        """,
        "physical devices behind shares and slices",
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
        "those of them of which every share is healthy and free: free as a whole",
    ),
)

_FLEET: Final = (
    *(
        Record(
            f"cluster_resource:devicelens_{what}:sum",
            f"sum by (cluster, resource) (node_resource:devicelens_{what}:{operation})",
            f"the same of a cluster: {says}",
        )
        for what, operation, says in (
            ("devices", "max", "devices"),
            ("allocatable_devices", "max", "allocatable"),
            ("allocated_devices", "max", "held"),
            ("unhealthy_devices", "max", "not allocatable"),
            ("free_devices", "sum", "free"),
            ("stranded_devices", "sum", "free and not to be used together"),
            ("parents", "count", "behind shares and slices"),
            ("free_parents", "count", "of those, free as a whole"),
        )
    ),
    Record(
        "cluster_resource:devicelens_largest_free_group:max",
        """
        max by (cluster, resource) (node_resource_numa:devicelens_free_devices:count)
        or cluster_resource:devicelens_free_devices:sum == 0
        """,
        "the largest request that some node could serve from one NUMA node",
    ),
    Record(
        "cluster_namespace_resource:devicelens_held_devices:sum",
        """
        sum by (cluster, namespace, resource) (node_namespace_resource:devicelens_held_devices:count)
        """,
        "devices that a namespace holds in a cluster",
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
    # Sixty moments, whichever second this is evaluated in, and whether or not a window has its left end.
    Record(
        "cluster_namespace_resource:devicelens_held_device_seconds:increase1h",
        """
        sum_over_time(cluster_namespace_resource:devicelens_held_devices:sum[59m59s999ms:1m]) * 60
        """,
        "device seconds that a namespace held in the hour before, counted each minute",
    ),
    Record(
        "cluster_resource:devicelens_allocations:rate5m",
        "sum by (cluster, resource) (rate(devicelens_allocations_total[5m]))",
        "allocations a second",
    ),
    Record(
        "cluster_resource:devicelens_releases:rate5m",
        "sum by (cluster, resource) (rate(devicelens_releases_total[5m]))",
        "releases a second",
    ),
)

GROUPS: Final = (
    Group("devicelens-targets", _TARGETS),
    Group("devicelens-nodes", (*_COUNTS, *_HOLDINGS, *_FRAGMENTS)),
    Group("devicelens-fleet", _FLEET),
)
