"""Every manifest as it is rendered: made of what is here, as the schemas have it, and asking for little."""

import difflib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.make_manifests import RULES, RULES_FILE, folders, kustomize, prometheus_rule, render
from harness.manifests import (
    DEPLOY,
    RENDERED,
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
from runtime.version import __version__

OLD, FIRST = "1.28", "1.30"
VERSIONS = (FIRST, "1.31", "1.34", kubernetes_validate.latest_version())
"""recursiveReadOnly came with 1.30: overlays/before-1.30 is for those before it."""

CUSTOM = {"PodMonitor", "PrometheusRule", "SecurityContextConstraints"}

HOST_PATHS = {
    "/var/lib/kubelet/pod-resources": "the socket that says who holds what",
    "/var/lib/kubelet/device-plugins": "registration, the plugin's own sockets, what tells of allocations",
    "/var/lib/kubelet/pods-api": "the socket that says who the pods are",
    "/var/lib/kubelet/plugins_registry": "registration by directory, where it is asked for",
    "/var/lib/devicelens": "history, where it is asked for",
    "/dev": "which device nodes there are",
    "/sys/bus": "devices by their bus",
    "/sys/class": "devices by their class",
    "/sys/dev": "from a device node to its device",
    "/sys/devices": "the devices, and their NUMA nodes",
    "/proc/driver": "what NVIDIA's driver tells of its devices",
    "/proc/1/net": "which interfaces the node itself hangs on",
    "/etc/colas": "an example's devices",
}
"""Why each directory of the node is mounted; whatever is not here needs a reason first."""

WITH_MOUNTS_IN_IT = {"/dev"}
"""Where the node mounts other file systems, which a mount that is read-only by itself leaves writable."""

TOO_MUCH = {
    "/": "the node",
    "/sys": "cgroups, debugfs and EFI's variables are mounted in it, and root may write to them",
    "/proc": "root reads the environment and the files of other processes without capabilities",
    "/var/lib/kubelet": "every secret of every pod of the node",
}
"""What is never mounted as a whole."""

WRITABLE = {
    ("exporter", "/var/lib/devicelens"): "history",
    ("plugin", "/var/lib/kubelet/device-plugins"): "its sockets",
    ("plugin", "/var/lib/kubelet/plugins_registry"): "its sockets",
}

RIGHTS = {
    ("", "pods", "list"): "overlays/apiserver",
    ("", "pods", "watch"): "overlays/apiserver",
    ("security.openshift.io", "securitycontextconstraints", "use"): "overlays/openshift",
}

every = pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)


def test_each_folder_is_rendered_and_nothing_else_is() -> None:
    assert {path.stem for path in RENDERED} == {folder.name for folder in folders()}
    assert RENDERED


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_what_is_rendered_is_what_kustomize_makes(folder: Path) -> None:
    tool = kustomize()
    if tool is None:
        pytest.skip("neither kustomize nor kubectl is installed; what was rendered is checked all the same")
    try:
        made = render(tool, folder)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{folder.name} cannot be rendered: {error}")
    (kept,) = (path for path in RENDERED if path.stem == folder.name)
    # Versions of kustomize differ in the order of keys and in quotes.
    if list(yaml.safe_load_all(made)) != list(yaml.safe_load_all(kept.read_text())):
        difference = difflib.unified_diff(kept.read_text().splitlines(), made.splitlines(), lineterm="", n=1)
        pytest.fail("run `make manifests`:\n" + "\n".join(difference))


def test_the_alert_rules_are_those_of_the_dashboards() -> None:
    if not RULES.is_dir():
        pytest.skip("there are no dashboards/rules here")
    assert RULES_FILE.read_text() == prometheus_rule(), "run `make manifests`"


@every
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_kubernetes_know_every_field(path: Path, version: str) -> None:
    objects = [entry for entry in documents(path) if entry["kind"] not in CUSTOM]
    assert objects
    for entry in objects:
        kubernetes_validate.validate(entry, version, strict=True)


def test_before_1_30_there_is_an_overlay_for_it() -> None:
    (path,) = (path for path in RENDERED if path.stem == "before-1.30")
    for entry in documents(path):
        kubernetes_validate.validate(entry, OLD, strict=True)
    (base,) = (path for path in RENDERED if path.stem == "base")
    with pytest.raises(kubernetes_validate.ValidationError, match="recursiveReadOnly"):
        kubernetes_validate.validate(only(documents(base), "DaemonSet"), OLD, strict=True)


# --- what the schemas do not have: other people's kinds, by their own documentation


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
    # It admits what the pod asks for, and no kind of volume that it does not ask for.
    pod = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds <= set(scc["volumes"]) <= {"configMap", "hostPath", "projected", "secret"}
    for entry in pod["containers"]:
        assert entry["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    (subject,) = next(entry for entry in objects if entry["kind"] == "RoleBinding")["subjects"]
    assert subject["name"] == pod["serviceAccountName"]


@every
def test_other_kinds_have_the_fields_that_their_operators_know(path: Path) -> None:
    objects = documents(path)
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


# --- policy: what no manifest here may ask for


@every
def test_no_container_has_more_rights_than_it_needs(path: Path) -> None:
    pod = pod_of(path)
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "shareProcessNamespace"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    for entry in pod["containers"]:
        context = dict(entry["securityContext"])
        # SELinux has a type for those who may speak to the host's sockets.
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


@every
def test_each_directory_of_the_node_is_mounted_for_a_reason(path: Path) -> None:
    pod = pod_of(path)
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
        assert ("recursiveReadOnly" in mount) == (place in WITH_MOUNTS_IN_IT and path.stem != "before-1.30")
        # Directories: a file that is mounted, as a socket would be, is not seen when it is made anew.
        made = {"/var/lib/kubelet/pods-api", "/var/lib/devicelens", "/etc/colas"}
        assert host["type"] == ("DirectoryOrCreate" if place in made else "Directory")
        assert read_only or (name, place) in WRITABLE
        inside = "/host" + place if place.startswith(("/dev", "/sys", "/proc", "/etc")) else place
        assert mount["mountPath"] == inside
    for entry in pod["containers"]:
        places = [mount["mountPath"] for mount in entry["volumeMounts"]]
        assert len(places) == len(set(places))


@every
def test_what_a_container_costs_is_said_and_bounded(path: Path) -> None:
    for entry in pod_of(path)["containers"]:
        resources = entry["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}
        # A limit of CPU would hold up what has to be seen at once.
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

    (path,) = (path for path in RENDERED if path.stem == "base")
    pod = pod_of(path)
    for name in ("exporter", "plugin"):
        resources = container(pod, name)["resources"]
        assert measured(f"{name}, memory[^|]*") < int(resources["requests"]["memory"].removesuffix("Mi"))
    limit = int(container(pod, "exporter")["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert measured("(?:long ids|many devices), [^|]*: most memory [^|]*") < limit


@every
def test_images_are_of_this_version_and_can_be_replaced_in_one_place(path: Path) -> None:
    assert {entry["image"] for entry in pod_of(path)["containers"]} == {f"devicelens:{__version__}"}


@every
def test_rights_on_the_api_server_are_those_with_a_reason(path: Path) -> None:
    objects = documents(path)
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
    pod = pod_of(path)
    tokens = [volume["name"] for volume in pod["volumes"] if "serviceAccountToken" in str(volume)]
    asked = any(resource == "pods" for _, resource, _ in given)
    # A token goes with the right to use it, to the exporter alone.
    assert bool(tokens) == asked
    assert {name for name, mount, _ in mounts(pod) if mount["name"] in tokens} <= {"exporter"}


@every
def test_everything_is_in_the_namespace_and_refers_to_what_is_there(path: Path) -> None:
    objects = documents(path)
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
        # Secrets are the cluster's: docs/install.md tells how they are made.
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


@every
def test_flags_and_variables_are_the_commands_own(path: Path) -> None:
    pod = pod_of(path)
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


@every
def test_the_exporter_asks_the_plugin_beside_it_where_there_is_one(path: Path) -> None:
    pod = pod_of(path)
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


@every
def test_probes_ask_what_they_are_for(path: Path) -> None:
    for entry in pod_of(path)["containers"]:
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
        # A kubelet that hangs is no reason to end who tells of it: two minutes of silence are.
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


def test_by_annotations_both_ports_are_scraped_once() -> None:
    (path,) = (path for path in RENDERED if path.stem == "prometheus-annotations")
    template = only(documents(path), "DaemonSet")["spec"]["template"]
    ports = sorted(scraped(template["spec"], template["metadata"]["annotations"]))
    assert ports == ["10190", "10191"]
    one = {**template["metadata"]["annotations"], "prometheus.io/port": "10190"}
    assert set(scraped(template["spec"], one)) == {"10190"}


@every
def test_an_update_needs_no_room_for_a_second_pod_unless_it_is_asked_for(path: Path) -> None:
    spec = only(documents(path), "DaemonSet")["spec"]
    surge = {"maxSurge": "10%", "maxUnavailable": 0}
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": surge if path.stem == "surge" else {"maxUnavailable": "10%"},
    }
    assert spec["minReadySeconds"] > 0
