"""deploy/ as Kubernetes takes it, judged without a cluster; rendered by kustomize where there is one."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
import pytest
import yaml

from daemon.flags import ListenAddress
from daemon.version import __version__
from devicelens import main as front_door
from exporter.pods.api_access import ACCOUNT
from plugin.core.config import load
from plugin.core.model import Files, Glob, Nvidia

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE = DEPLOY / "base"
FOLDERS = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))
CONFIGURATIONS = sorted(DEPLOY.rglob("plugin.yaml"))

# A kustomization, a manifest, a container: documents as they are written.
Mapping = dict[str, Any]


def document(path: Path) -> Mapping:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def name_of(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


@pytest.fixture
def kustomization() -> Mapping:
    return document(BASE / "kustomization.yaml")


@pytest.fixture
def daemonset() -> Mapping:
    return document(BASE / "daemonset.yaml")


@pytest.fixture
def pod(daemonset: Mapping) -> Mapping:
    spec: Mapping = daemonset["spec"]["template"]["spec"]
    return spec


def container(pod: Mapping, name: str) -> Mapping:
    (found,) = (entry for entry in pod["containers"] if entry["name"] == name)
    assert isinstance(found, dict)
    return found


def parsed(entry: Mapping) -> dict[str, Any]:
    """What the real command makes of a container's arguments. Raises click's errors."""
    name, *flags = entry["args"]
    context = click.Context(front_door)
    command = front_door.get_command(context, name)
    assert command is not None
    with command.make_context(name, flags, parent=context) as made:
        return made.params


def test_every_file_of_the_base_is_in_the_kustomization_and_is_a_document(kustomization: Mapping) -> None:
    generated = [file for entry in kustomization["configMapGenerator"] for file in entry["files"]]
    listed = {*kustomization["resources"], *generated, "kustomization.yaml"}
    assert listed == {path.name for path in BASE.iterdir()}
    for name in kustomization["resources"]:
        assert {"apiVersion", "kind", "metadata"} <= document(BASE / name).keys()


def test_the_selector_is_made_by_kustomize_alone_and_matches_the_pods(
    kustomization: Mapping, daemonset: Mapping
) -> None:
    (labels,) = kustomization["labels"]
    assert labels["includeSelectors"] is True
    assert labels["pairs"]
    # A selector or a label written here could contradict what includeSelectors adds to both.
    assert "selector" not in daemonset["spec"]
    assert "labels" not in daemonset["spec"]["template"].get("metadata", {})
    assert document(BASE / "namespace.yaml")["metadata"]["name"] == kustomization["namespace"]


def test_the_image_is_of_this_version(kustomization: Mapping, pod: Mapping) -> None:
    (image,) = kustomization["images"]
    assert image["newTag"] == __version__
    assert {entry["image"] for entry in pod["containers"]} == {image["name"]}


def test_every_mount_has_its_volume_and_every_volume_is_mounted(pod: Mapping) -> None:
    volumes = [volume["name"] for volume in pod["volumes"]]
    mounts = [mount for entry in pod["containers"] for mount in entry["volumeMounts"]]
    assert len(volumes) == len(set(volumes))
    assert {mount["name"] for mount in mounts} == set(volumes)
    for entry in pod["containers"]:
        places = [mount["mountPath"] for mount in entry["volumeMounts"]]
        assert len(places) == len(set(places))


def test_directories_are_mounted_never_a_socket_nor_the_whole_host(pod: Mapping) -> None:
    hosts = [volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume]
    assert hosts
    for host in hosts:
        # Kubelets without the Pods API have no directory for it.
        made = host["path"] == "/var/lib/kubelet/pods-api"
        assert host["type"] == ("DirectoryOrCreate" if made else "Directory")
        assert host["path"] != "/"
        assert not host["path"].endswith(".sock")


def test_the_kubelets_directories_are_where_the_commands_look(pod: Mapping) -> None:
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    writable = set()
    for entry in pod["containers"]:
        root = PurePosixPath(parsed(entry)["kubelet_root"])
        places = {mount["name"]: mount for mount in entry["volumeMounts"]}
        for name in ("pod-resources", "device-plugins"):
            assert hosts[name] == places[name]["mountPath"] == str(root / name)
        writable |= {(entry["name"], m["name"]) for m in entry["volumeMounts"] if not m.get("readOnly")}
    # The plugin's own sockets are made there.
    assert writable == {("plugin", "device-plugins")}


def test_every_container_is_confined(pod: Mapping) -> None:
    for entry in pod["containers"]:
        assert entry["securityContext"] == {
            "runAsUser": 0,
            "runAsGroup": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()


def test_probes_ask_the_port_that_the_command_listens_on(pod: Mapping) -> None:
    named = [port["name"] for entry in pod["containers"] for port in entry["ports"]]
    assert len(named) == len(set(named))
    for entry in pod["containers"]:
        (port,) = entry["ports"]
        assert parsed(entry)["web_listen_address"] == ListenAddress(port=port["containerPort"])
        assert entry["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": port["name"]}
        assert entry["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": port["name"]}


def test_prometheus_is_told_of_the_exporters_port(daemonset: Mapping, pod: Mapping) -> None:
    annotations = daemonset["spec"]["template"]["metadata"]["annotations"]
    (port,) = container(pod, "exporter")["ports"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


def test_the_plugins_configuration_is_the_generated_one(kustomization: Mapping, pod: Mapping) -> None:
    entry = container(pod, "plugin")
    file = PurePosixPath(parsed(entry)["config"])
    (mount,) = (m for m in entry["volumeMounts"] if m["mountPath"] == str(file.parent))
    (volume,) = (v for v in pod["volumes"] if v["name"] == mount["name"])
    (generated,) = kustomization["configMapGenerator"]
    assert volume["configMap"]["name"] == generated["name"]
    assert file.name in generated["files"]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=name_of)
def test_the_plugins_configuration_is_one_and_speaks_of_what_is_mounted(path: Path, pod: Mapping) -> None:
    entry = container(pod, "plugin")
    gone = {place for patch in patched(path.parent) for place in unmounted_of(patch)}
    assert gone <= {mount["mountPath"] for mount in entry["volumeMounts"]}
    kept = [mount for mount in entry["volumeMounts"] if mount["mountPath"] not in gone]
    mounts = [*kept, *(m for added in patched(path.parent) for m in mounts_of(added))]
    root = PurePosixPath(parsed(entry)["host_root"])
    seen = [
        PurePosixPath("/") / place.relative_to(root)
        for mount in mounts
        if (place := PurePosixPath(mount["mountPath"])).is_relative_to(root)
    ]
    plans = load(path.read_bytes(), name_of(path))
    assert plans
    directories = [PurePosixPath(text) for plan in plans for text in looked_in(plan.sources)]
    assert directories
    for directory in directories:
        assert any(directory.is_relative_to(place) for place in seen), f"{directory} is not mounted"


def looked_in(sources: tuple[object, ...]) -> Iterator[str]:
    for source in sources:
        match source:
            case Files():
                yield source.directory
            case Glob():
                yield from source.paths
            case Nvidia():
                yield from ("/dev", "/proc/driver/nvidia", "/sys/bus/pci/devices")
            case _:
                raise AssertionError(f"say here where {type(source).__name__} looks")


def patched(folder: Path) -> Iterator[Mapping]:
    for entry in document(folder / "kustomization.yaml").get("patches", []):
        yield yaml.safe_load(entry["patch"])


def mounts_of(patch: Mapping) -> Iterator[Mapping]:
    for entry in patch["spec"]["template"]["spec"].get("containers", []):
        yield from (mount for mount in entry.get("volumeMounts", []) if mount.get("$patch") != "delete")


def unmounted_of(patch: Mapping) -> Iterator[str]:
    for entry in patch["spec"]["template"]["spec"].get("containers", []):
        for mount in entry.get("volumeMounts", []):
            if mount.get("$patch") == "delete":
                yield mount["mountPath"]


@pytest.mark.parametrize("folder", [f for f in FOLDERS if f != BASE], ids=name_of)
def test_an_overlay_is_of_the_base_and_changes_what_is_there(
    folder: Path, pod: Mapping, kustomization: Mapping
) -> None:
    overlay = document(folder / "kustomization.yaml")
    base, *others = [(folder / path).resolve() for path in overlay["resources"]]
    assert base == BASE
    assert all(other.parent == folder and other.is_file() for other in others)
    for generated in overlay.get("configMapGenerator", []):
        assert generated["behavior"] == "replace"
        assert generated["namespace"] == kustomization["namespace"]
        assert generated["name"] in {entry["name"] for entry in kustomization["configMapGenerator"]}
        assert all((folder / file).is_file() for file in generated["files"])
    names = {kind: {entry["name"] for entry in pod[kind]} for kind in ("containers", "volumes")}
    for patch in patched(folder):
        assert (patch["kind"], patch["metadata"]["name"]) == ("DaemonSet", "devicelens")
        changed = patch["spec"]["template"]["spec"]
        assert {entry["name"] for entry in changed["containers"]} <= names["containers"]
        removed = {entry["name"] for entry in changed["volumes"] if entry.get("$patch") == "delete"}
        added = {entry["name"] for entry in changed["volumes"]} - removed
        assert removed <= names["volumes"]
        assert added == {mount["name"] for mount in mounts_of(patch)}


def test_the_api_server_is_watched_with_no_more_rights_than_that_takes() -> None:
    folder = DEPLOY / "overlays" / "apiserver"
    loaded = {entry["kind"]: entry for entry in yaml.safe_load_all((folder / "rbac.yaml").read_text())}
    assert loaded["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    account, binding = loaded["ServiceAccount"], loaded["ClusterRoleBinding"]
    assert account["automountServiceAccountToken"] is False
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (
        account["metadata"]["name"],
        account["metadata"]["namespace"],
    )
    assert binding["roleRef"]["name"] == loaded["ClusterRole"]["metadata"]["name"]
    (patch,) = patched(folder)
    spec = patch["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    # The token is the exporter's alone, where it looks for it.
    (changed,) = spec["containers"]
    assert changed["name"] == "exporter"
    (mount,) = changed["volumeMounts"]
    assert mount["mountPath"] == str(ACCOUNT)
    (volume,) = spec["volumes"]
    paths = {
        item["path"]
        for source in volume["projected"]["sources"]
        for part in source.values()
        for item in part.get("items", [part])
    }
    assert paths == {"token", "ca.crt"}
    ((name, value),) = {entry["name"]: entry["value"] for entry in changed["env"]}.items()
    command = front_door.get_command(click.Context(front_door), "exporter")
    assert command is not None
    (option,) = (found for found in command.params if found.name == "pods_source")
    assert name == option.envvar
    assert isinstance(option.type, click.Choice)
    assert value in option.type.choices


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_kustomize_renders_a_daemonset_whose_parts_fit(folder: Path) -> None:
    kustomize, kubectl = shutil.which("kustomize"), shutil.which("kubectl")
    if kustomize is None and kubectl is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    command = [kustomize, "build"] if kustomize is not None else [str(kubectl), "kustomize"]
    told = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    objects = {entry["kind"]: entry for entry in yaml.safe_load_all(told.stdout)}
    spec = objects["DaemonSet"]["spec"]
    namespace = objects["Namespace"]["metadata"]["name"]
    assert {o["metadata"].get("namespace", namespace) for o in objects.values()} == {namespace}
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    assert {entry["image"] for entry in pod["containers"]} == {f"devicelens:{__version__}"}
    mounted = {mount["name"] for entry in pod["containers"] for mount in entry["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    named = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert named <= {objects["ConfigMap"]["metadata"]["name"]}
