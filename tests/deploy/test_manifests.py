"""deploy/ as it is written: the base, its components, and the configurations that go with them."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import click
import pytest
import yaml

from exporter.pods.kubeconfig import ACCOUNT
from harness.manifests import (
    DEPLOY,
    RENDERED,
    Mapping,
    command,
    container,
    documents,
    environment,
    only,
    parsed,
    pod_of,
    variables,
)
from plugin.config.load import load
from plugin.discovery.files import Files
from plugin.discovery.glob import Glob
from plugin.discovery.nvidia import Nvidia
from runtime.version import __version__

BASE = DEPLOY / "base"
OVERLAYS = sorted(path.parent for path in DEPLOY.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent for path in DEPLOY.glob("components/*/kustomization.yaml"))
PLUGINS = [path for path in RENDERED if any("plugin.yaml" in e.get("data", {}) for e in documents(path))]


def document(path: Path) -> Mapping:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture
def kustomization() -> Mapping:
    return document(BASE / "kustomization.yaml")


@pytest.fixture
def daemonset() -> Mapping:
    return document(BASE / "daemonset.yaml")


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


def test_the_image_is_of_this_version(kustomization: Mapping, daemonset: Mapping) -> None:
    (image,) = kustomization["images"]
    assert image["newTag"] == __version__
    pod = daemonset["spec"]["template"]["spec"]
    assert {entry["image"] for entry in pod["containers"]} == {image["name"]}


def test_each_right_and_each_mount_has_its_reason_beside_it() -> None:
    lines = (BASE / "daemonset.yaml").read_text().splitlines()
    for right in ("securityContext: &confined", "volumeMounts:", "tolerations:", "updateStrategy:"):
        # What a container says first says it for the other.
        for number in [n for n, line in enumerate(lines) if line.strip() == right][:1]:
            assert any("#" in line for line in (lines[number - 1], lines[number + 1])), lines[number]
    for right in ("automountServiceAccountToken", "enableServiceLinks"):
        (line,) = (line for line in lines if right in line)
        assert "#" in line


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_an_overlay_is_the_base_and_components_and_nothing_of_its_own(folder: Path) -> None:
    overlay = document(folder / "kustomization.yaml")
    assert overlay.keys() == {"apiVersion", "kind", "resources", "components"}
    assert [(folder / path).resolve() for path in overlay["resources"]] == [BASE]
    assert all((folder / path).resolve() in COMPONENTS for path in overlay["components"])
    assert [path.name for path in folder.iterdir()] == ["kustomization.yaml"]


def test_each_component_is_shown_by_an_overlay() -> None:
    shown = {
        (folder / path).resolve()
        for folder in OVERLAYS
        for path in document(folder / "kustomization.yaml")["components"]
    }
    assert shown == set(COMPONENTS)


@pytest.mark.parametrize("folder", COMPONENTS, ids=lambda folder: folder.name)
def test_a_component_says_what_it_is_for_and_changes_the_daemonset_by_name(folder: Path) -> None:
    text = (folder / "kustomization.yaml").read_text()
    assert text.startswith("# ")
    component = document(folder / "kustomization.yaml")
    assert component["kind"] == "Component"
    generated = [file for entry in component.get("configMapGenerator", []) for file in entry["files"]]
    listed = {*component.get("resources", []), *generated, "kustomization.yaml"}
    assert listed == {path.name for path in folder.iterdir()}
    for entry in component.get("patches", []):
        patch = yaml.safe_load(entry["patch"])
        if "target" not in entry:
            assert (patch["kind"], patch["metadata"]["name"]) == ("DaemonSet", "devicelens")


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
def test_the_plugins_configuration_is_one_and_speaks_of_what_is_mounted(path: Path) -> None:
    entry = container(pod_of(path), "plugin")
    values = parsed(entry)
    root, file = PurePosixPath(values["host_root"]), PurePosixPath(values["config"])
    (text,) = (e["data"][file.name] for e in documents(path) if file.name in e.get("data", {}))
    seen = [
        PurePosixPath("/") / place.relative_to(root)
        for mount in entry["volumeMounts"]
        if (place := PurePosixPath(mount["mountPath"])).is_relative_to(root)
    ]
    plans = load(text.encode(), path.stem)
    assert plans
    directories = [PurePosixPath(found) for plan in plans for found in looked_in(plan.sources)]
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


def test_the_kubelets_directories_are_where_the_commands_look() -> None:
    (path,) = (path for path in RENDERED if path.stem == "base")
    pod = pod_of(path)
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    for entry in pod["containers"]:
        root = PurePosixPath(parsed(entry)["kubelet_root"])
        places = {mount["name"]: mount for mount in entry["volumeMounts"]}
        for name in ("pod-resources", "device-plugins"):
            assert hosts[name] == places[name]["mountPath"] == str(root / name)


def test_the_api_server_is_watched_with_no_more_rights_than_that_takes() -> None:
    (path,) = (path for path in RENDERED if path.stem == "apiserver")
    objects = documents(path)
    assert only(objects, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    # The token is the exporter's alone, where it looks for it.
    pod = pod_of(path)
    entry = container(pod, "exporter")
    (mount,) = (mount for mount in entry["volumeMounts"] if mount["mountPath"] == str(ACCOUNT))
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == mount["name"])
    paths = {
        item["path"]
        for source in volume["projected"]["sources"]
        for part in source.values()
        for item in part.get("items", [part])
    }
    assert paths == {"token", "ca.crt"}
    option = variables("exporter")["DEVICELENS_PODS_SOURCE"]
    assert isinstance(option.type, click.Choice)
    assert environment(entry)["DEVICELENS_PODS_SOURCE"] in option.type.choices
    assert command("exporter").name == "exporter"


@pytest.mark.parametrize("name", ["tls", "tls-and-passwords"])
def test_the_web_configuration_speaks_of_what_is_mounted(name: str) -> None:
    (path,) = (path for path in RENDERED if path.stem == name)
    web = document(DEPLOY / "components/tls/web.yaml")
    files = [PurePosixPath(web["tls_server_config"][key]) for key in ("cert_file", "key_file")]
    for entry in pod_of(path)["containers"]:
        places = [PurePosixPath(mount["mountPath"]) for mount in entry["volumeMounts"]]
        assert all(file.parent in places for file in files)
        given = environment(entry)
        for variable in ("DEVICELENS_PLUGIN_CA_FILE", "DEVICELENS_PLUGIN_PASSWORD_FILE"):
            assert variable not in given or PurePosixPath(given[variable]).parent in places
