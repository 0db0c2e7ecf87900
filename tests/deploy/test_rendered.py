"""The rendered manifests: valid by the schemas, with minimal rights, consistent in themselves."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from harness.manifests import (
    COMBINATIONS,
    DEPLOY,
    Mapping,
    command,
    container,
    documents,
    environment,
    mounts,
    only,
    parsed,
    pod_of,
    variables,
)
from runtime import __version__

OLD, FIRST = "1.28", "1.30"
LATEST = kubernetes_validate.latest_version()
"""Kubernetes 1.30 added recursiveReadOnly; components/before-1.30 is for older API servers."""

CUSTOM = {"PodMonitor", "PrometheusRule", "SecurityContextConstraints"}

HOST_PATHS = {
    "/var/lib/kubelet/pod-resources": "the PodResources socket",
    "/var/lib/kubelet/device-plugins": "registration, the plugin's sockets, the checkpoint",
    "/var/lib/kubelet/pods-api": "the Pods API socket",
    "/var/lib/kubelet/plugins_registry": "registration by directory (components/registry)",
    "/var/lib/devicelens": "history (components/history)",
    "/sys/fs/cgroup/kubepods.slice": "the ends of pods (components/cgroups)",
    "/dev": "device nodes",
    "/sys/bus": "devices by their bus",
    "/sys/class": "devices by their class",
    "/sys/dev": "from a device node to its device",
    "/sys/devices": "the devices, and their NUMA nodes",
    "/proc/driver": "NVIDIA's driver files",
    "/proc/1/net": "the default route's interface",
    "/etc/colas": "an example's devices",
    "/etc/cdi": "CDI specifications of claimed devices (components/cdi)",
    "/var/run/cdi": "CDI specifications of claimed devices (components/cdi)",
}
"""The reason for each host path."""

WITH_MOUNTS_IN_IT = {"/dev"}
"""Host paths with other mounts below, which stay writable in a mount that is not recursively read-only."""

TOO_MUCH = {
    "/": "the node",
    "/sys": "cgroups, debugfs and EFI's variables are mounted in it, and root may write to them",
    "/proc": "root reads the environment and the files of other processes without capabilities",
    "/var/lib/kubelet": "every secret of every pod of the node",
}
"""Host paths that no container mounts as a whole."""

WRITABLE = {
    ("exporter", "/var/lib/devicelens"): "history",
    ("plugin", "/var/lib/kubelet/device-plugins"): "its sockets",
    ("plugin", "/var/lib/kubelet/plugins_registry"): "its sockets",
}

RIGHTS = {
    ("", "pods", "list"): "components/apiserver",
    ("", "pods", "watch"): "components/apiserver",
    ("resource.k8s.io", "resourceslices", "list"): "components/dra",
    ("resource.k8s.io", "resourceslices", "watch"): "components/dra",
    ("resource.k8s.io", "resourceclaims", "get"): "components/dra",
    ("security.openshift.io", "securitycontextconstraints", "use"): "components/openshift",
}


@pytest.fixture(scope="module", params=COMBINATIONS)
def combination(request: pytest.FixtureRequest) -> str:
    """Each combination; the scope keeps the tests of one together, so that a worker renders it once."""
    name: str = request.param
    return name


@pytest.mark.parametrize(
    ("combination", "version"),
    [*((name, LATEST) for name in COMBINATIONS), ("base", FIRST), ("production", FIRST)],
)
def test_every_field_is_in_the_schemas_of_kubernetes(combination: str, version: str) -> None:
    objects = [entry for entry in documents(combination) if entry["kind"] not in CUSTOM]
    assert objects
    for entry in objects:
        kubernetes_validate.validate(entry, version, strict=True)


def test_the_component_before_1_30_is_valid_for_1_28() -> None:
    combination = "before-1.30"
    for entry in documents(combination):
        kubernetes_validate.validate(entry, OLD, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError, match="recursiveReadOnly"):
        kubernetes_validate.validate(only(documents("base"), "DaemonSet"), OLD, strict=True)


# --- custom kinds, which the schemas do not have


def check_pod_monitor(spec: Mapping, objects: list[Mapping]) -> None:
    assert spec.keys() == {"selector", "podMetricsEndpoints"}
    template = only(objects, "DaemonSet")["spec"]["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for entry in template["spec"]["containers"] for port in entry["ports"]}
    assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} == {"metrics", "plugin-metrics"}
    assert ports in ({"metrics"}, {"metrics", "plugin-metrics"})
    secure = "DEVICELENS_WEB_CONFIG_FILE" in environment(container(template["spec"], "exporter"))
    for endpoint in spec["podMetricsEndpoints"]:
        known = {"port", "path", "honorLabels", "relabelings", "scheme", "tlsConfig", "basicAuth"}
        assert endpoint.keys() <= known
        assert endpoint["honorLabels"] is True
        assert endpoint["path"] == "/metrics"
        assert endpoint["relabelings"] == [
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
        ]
        assert endpoint.get("scheme", "http") == ("https" if secure else "http")
        if secure:
            assert endpoint["tlsConfig"].keys() == {"serverName", "ca"}
            assert endpoint["tlsConfig"]["ca"]["secret"].keys() == {"name", "key"}


def check_prometheus_rule(spec: Mapping, _objects: list[Mapping]) -> None:
    assert spec.keys() == {"groups"}
    names = [group["name"] for group in spec["groups"]]
    assert len(names) == len(set(names))
    for group in spec["groups"]:
        assert group.keys() <= {"name", "interval", "limit", "labels", "rules"}
        for rule in group["rules"]:
            assert isinstance(rule["expr"], str)
            if "alert" in rule:
                known = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
            else:
                known = {"record", "expr", "labels"}
            assert rule.keys() <= known
            texts = [*rule.get("labels", {}).values(), *rule.get("annotations", {}).values()]
            assert all(isinstance(text, str) for text in texts)


def check_scc(scc: Mapping, objects: list[Mapping]) -> None:
    for right in ("IPC", "Network", "PID", "Ports"):
        assert scc[f"allowHost{right}"] is False
    assert scc["allowPrivilegedContainer"] is False
    assert scc["allowPrivilegeEscalation"] is False
    assert scc["allowedCapabilities"] == scc["defaultAddCapabilities"] == []
    assert scc["requiredDropCapabilities"] == ["ALL"]
    assert scc["readOnlyRootFilesystem"] is True
    assert scc["runAsUser"] == {"type": "MustRunAs", "uid": 0}
    # The SCC admits the pod's volume kinds and no others.
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds <= set(scc["volumes"]) <= {"configMap", "hostPath", "projected", "secret"}
    for entry in pod["containers"]:
        assert entry["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    (subject,) = next(entry for entry in objects if entry["kind"] == "RoleBinding")["subjects"]
    assert subject["name"] == pod["serviceAccountName"]


def test_custom_kinds_have_known_fields(combination: str) -> None:
    objects = documents(combination)
    checks: dict[str, tuple[str, Callable[[Any, list[Mapping]], None]]] = {
        "PodMonitor": ("monitoring.coreos.com/v1", check_pod_monitor),
        "PrometheusRule": ("monitoring.coreos.com/v1", check_prometheus_rule),
        "SecurityContextConstraints": ("security.openshift.io/v1", check_scc),
    }
    assert checks.keys() == CUSTOM
    for entry in objects:
        if entry["kind"] in checks:
            version, check = checks[entry["kind"]]
            assert entry["apiVersion"] == version
            check(entry.get("spec", entry), objects)


# --- policy


def test_no_container_has_more_rights_than_it_needs(combination: str) -> None:
    pod = pod_of(combination)
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "shareProcessNamespace"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    for entry in pod["containers"]:
        context = dict(entry["securityContext"])
        # SELinux allows the host's sockets to spc_t alone.
        assert context.pop("seLinuxOptions", {"type": "spc_t"}) == {"type": "spc_t"}
        assert context == {
            "runAsUser": 0,
            "runAsGroup": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert not any(port.get("hostPort") for port in entry["ports"])


def test_each_host_path_has_a_reason(combination: str) -> None:
    pod = pod_of(combination)
    names = [volume["name"] for volume in pod["volumes"]]
    assert len(names) == len(set(names))
    assert {mount["name"] for _, mount, _ in mounts(pod)} == set(names)
    for name, mount, volume in mounts(pod):
        read_only = mount.get("readOnly", False)
        if "hostPath" not in volume:
            assert read_only
            continue
        host = volume["hostPath"]
        place = host["path"].replace("/var/lib/k0s/kubelet", "/var/lib/kubelet")
        assert place in HOST_PATHS
        assert place not in TOO_MUCH
        assert ("recursiveReadOnly" in mount) == (place in WITH_MOUNTS_IN_IT and combination != "before-1.30")
        # Directories only: a mounted socket is not replaced when the kubelet creates it again.
        made = {"/var/lib/kubelet/pods-api", "/var/lib/devicelens", "/etc/colas", "/etc/cdi", "/var/run/cdi"}
        assert host["type"] == ("DirectoryOrCreate" if place in made else "Directory")
        assert read_only or (name, place) in WRITABLE
        inside = "/host" + place if place.startswith(("/dev", "/sys", "/proc", "/etc/colas")) else place
        assert mount["mountPath"] == inside
    for entry in pod["containers"]:
        places = [mount["mountPath"] for mount in entry["volumeMounts"]]
        assert len(places) == len(set(places))


def test_requests_and_limits_are_set(combination: str) -> None:
    for entry in pod_of(combination)["containers"]:
        resources = entry["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}
        # No CPU limit: throttling delays refreshes.
        assert resources["limits"].keys() == {"memory"}
        requested, limit = (
            int(resources[kind]["memory"].removesuffix("Mi")) for kind in ("requests", "limits")
        )
        assert 64 <= requested <= limit <= 768


def test_requests_and_limits_are_above_what_was_measured() -> None:
    text = (DEPLOY.parent / "docs/benchmarks.md").read_text()

    def measured(pattern: str) -> float:
        """The largest of the figures in rows whose first column matches, in MiB."""
        rows = re.findall(rf"^\| {pattern} \| ([0-9.]+) MiB", text, re.MULTILINE)
        assert rows, pattern
        return max(map(float, rows))

    combination = "base"
    pod = pod_of(combination)
    for name in ("exporter", "plugin"):
        resources = container(pod, name)["resources"]
        assert measured(f"{name}, memory[^|]*") < int(resources["requests"]["memory"].removesuffix("Mi"))
    limit = int(container(pod, "exporter")["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert measured("exporter, most memory with the largest List") < limit


def test_images_are_of_this_version_and_can_be_replaced_in_one_place(combination: str) -> None:
    assert {entry["image"] for entry in pod_of(combination)["containers"]} == {f"devicelens:{__version__}"}


def test_rights_on_the_api_server_have_a_reason(combination: str) -> None:
    objects = documents(combination)
    given = {
        (group, resource, verb)
        for entry in objects
        if entry["kind"] in {"Role", "ClusterRole"}
        for rule in entry["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given <= RIGHTS.keys()
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    pod = pod_of(combination)
    tokens = [volume["name"] for volume in pod["volumes"] if "serviceAccountToken" in str(volume)]
    asked = any(RIGHTS[right] in {"components/apiserver", "components/dra"} for right in given)
    # Only the exporter has a token, and only with rights.
    assert bool(tokens) == asked
    assert {name for name, mount, _ in mounts(pod) if mount["name"] in tokens} <= {"exporter"}


def test_objects_are_in_the_namespace_and_references_resolve(combination: str) -> None:
    objects = documents(combination)
    namespace = only(objects, "Namespace")["metadata"]["name"]
    everywhere = {"Namespace", "ClusterRole", "ClusterRoleBinding", "SecurityContextConstraints"}
    for entry in objects:
        if entry["kind"] not in everywhere:
            assert entry["metadata"]["namespace"] == namespace
    made = {(entry["kind"], entry["metadata"]["name"]) for entry in objects}
    spec = only(objects, "DaemonSet")["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    assert ("ServiceAccount", pod["serviceAccountName"]) in made
    for volume in pod["volumes"]:
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in made
        # The user creates the Secrets, see docs/install.md.
        if "secret" in volume:
            assert volume["secret"]["secretName"] in {"devicelens-tls", "devicelens-web"}
            assert volume["secret"]["defaultMode"] == 0o400
    for entry in objects:
        if entry["kind"].endswith("Binding"):
            assert (entry["roleRef"]["kind"], entry["roleRef"]["name"]) in made
            for subject in entry["subjects"]:
                assert ("ServiceAccount", subject["name"]) in made
                assert subject["namespace"] == namespace
        if entry["kind"] == "NetworkPolicy":
            labels = entry["spec"]["podSelector"]["matchLabels"]
            assert labels.items() <= spec["template"]["metadata"]["labels"].items()
            ports = {port["port"] for rule in entry["spec"]["ingress"] for port in rule["ports"]}
            assert ports >= {port["name"] for part in pod["containers"] for port in part["ports"]}


def test_flags_and_variables_exist(combination: str) -> None:
    pod = pod_of(combination)
    for entry in pod["containers"]:
        known = {*variables(entry["args"][0]), "NODE_NAME"}
        assert {given["name"] for given in entry["env"]} <= known
        values = parsed(entry)
        files = [
            value for value in (values.get("config"), values.get("web_config_file")) if value is not None
        ]
        places = [mount["mountPath"] for mount in entry["volumeMounts"]]
        for file in files:
            assert str(Path(file).parent) in places
        assert values.get("cgroup_root") is None or str(values["cgroup_root"]) in places


def test_the_exporter_has_the_plugins_url_if_there_is_a_plugin(combination: str) -> None:
    pod = pod_of(combination)
    given = environment(container(pod, "exporter"))
    urls = given.get("DEVICELENS_PLUGIN_URL")
    plugins = [entry for entry in pod["containers"] if entry["name"] == "plugin"]
    assert (urls is None) == (plugins == [])
    assert plugins or not any(name.startswith("DEVICELENS_PLUGIN_") for name in given)
    for plugin in plugins:
        scheme = "https" if "DEVICELENS_WEB_CONFIG_FILE" in environment(plugin) else "http"
        (port,) = plugin["ports"]
        assert urls == f"{scheme}://127.0.0.1:{port['containerPort']}"


PROBES = {"startupProbe": "/-/healthy", "livenessProbe": "/-/healthy", "readinessProbe": "/-/ready"}


def test_probes_use_the_right_endpoints(combination: str) -> None:
    for entry in pod_of(combination)["containers"]:
        (port,) = entry["ports"]
        assert parsed(entry)["web_listen_address"].port == port["containerPort"]
        scheme = "HTTPS" if "DEVICELENS_WEB_CONFIG_FILE" in environment(entry) else "HTTP"
        for kind, asked in PROBES.items():
            probe = entry[kind]
            if "exec" in probe:
                assert "httpGet" not in probe
                check_exec(probe["exec"]["command"], entry, ready=kind == "readinessProbe")
                continue
            assert probe["httpGet"].pop("scheme", "HTTP") == scheme
            assert probe["httpGet"] == {"path": asked, "port": port["name"]}
        # A kubelet that hangs must not restart the container.
        live = entry["livenessProbe"]
        assert live["periodSeconds"] * live["failureThreshold"] >= 60
        begin = entry["startupProbe"]
        assert begin["periodSeconds"] * begin["failureThreshold"] >= 60


def check_exec(line: list[str], entry: Mapping, *, ready: bool) -> None:
    program, name, *flags = line
    assert (program, name) == ("devicelens", "healthy")
    values = command("healthy").make_context("healthy", flags).params
    assert values["ready"] is ready
    if ready:
        assert str(values["login_file"].parent) in [mount["mountPath"] for mount in entry["volumeMounts"]]


def scraped(pod: Mapping, annotations: dict[str, str]) -> Iterator[str]:
    """The ports that the community's Prometheus chart asks of a pod so annotated: each port it declares
    is a target, and prometheus.io/port replaces its port where the annotation is there.
    """
    if annotations.get("prometheus.io/scrape") != "true":
        return
    for entry in pod["containers"]:
        for port in entry["ports"]:
            labels = f"{annotations.get('prometheus.io/port', '')};10.0.0.1"
            match = re.fullmatch(r"(\d+);((([0-9]+?)(\.|$)){4})", labels)
            yield match[1] if match else str(port["containerPort"])


def test_annotations_give_both_ports_once() -> None:
    combination = "prometheus-annotations"
    template = only(documents(combination), "DaemonSet")["spec"]["template"]
    ports = sorted(scraped(template["spec"], template["metadata"]["annotations"]))
    assert ports == ["10190", "10191"]
    one = {**template["metadata"]["annotations"], "prometheus.io/port": "10190"}
    assert set(scraped(template["spec"], one)) == {"10190"}


def test_only_the_surge_component_needs_room_for_a_second_pod(combination: str) -> None:
    spec = only(documents(combination), "DaemonSet")["spec"]
    surge = {"maxSurge": "10%", "maxUnavailable": 0}
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": surge if combination == "surge" else {"maxUnavailable": "10%"},
    }
    assert spec["minReadySeconds"] > 0


def test_only_the_namespace_of_prometheus_reaches_the_ports_of_the_production_overlay() -> None:
    found = documents("production")
    template = only(found, "DaemonSet")["spec"]["template"]
    policy = only(found, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    named = {port["name"] for one in template["spec"]["containers"] for port in one.get("ports", ())}
    assert {port["port"] for port in rule["ports"]} == named
