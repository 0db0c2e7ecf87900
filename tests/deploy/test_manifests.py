"""The files of deploy/: the base, its components and overlays, and their configurations."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import click
import pytest
import yaml

from exporter.apiserver import ACCOUNT
from exporter.dra import CDI_DIRECTORIES
from harness.manifests import (
    COMBINATIONS,
    COMPONENTS,
    DEPLOY,
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
from runtime import __version__

BASE = DEPLOY / "base"
OVERLAYS = sorted(path.parent for path in DEPLOY.glob("overlays/*/kustomization.yaml"))
PLUGINS = [name for name, parts in COMBINATIONS.items() if "exporter-only" not in parts]


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


def test_the_kustomization_lists_every_file_of_the_base(kustomization: Mapping) -> None:
    generated = [file for entry in kustomization["configMapGenerator"] for file in entry["files"]]
    listed = {*kustomization["resources"], *generated, "kustomization.yaml"}
    assert listed == {path.name for path in BASE.iterdir()}
    for name in kustomization["resources"]:
        assert {"apiVersion", "kind", "metadata"} <= document(BASE / name).keys()


def test_kustomize_alone_sets_selector_and_labels(kustomization: Mapping, daemonset: Mapping) -> None:
    (labels,) = kustomization["labels"]
    assert labels["includeSelectors"] is True
    assert labels["pairs"]
    # A selector or label in the file could contradict what includeSelectors adds.
    assert "selector" not in daemonset["spec"]
    assert "labels" not in daemonset["spec"]["template"].get("metadata", {})
    assert document(BASE / "namespace.yaml")["metadata"]["name"] == kustomization["namespace"]


def test_the_image_is_of_this_version(kustomization: Mapping, daemonset: Mapping) -> None:
    (image,) = kustomization["images"]
    assert image["newTag"] == __version__
    pod = daemonset["spec"]["template"]["spec"]
    assert {entry["image"] for entry in pod["containers"]} == {image["name"]}


def test_rights_and_mounts_have_a_reason_in_a_comment() -> None:
    lines = (BASE / "daemonset.yaml").read_text().splitlines()
    for right in ("securityContext: &confined", "volumeMounts:", "tolerations:", "updateStrategy:"):
        # The second container refers to the first by a YAML alias.
        for number in [n for n, line in enumerate(lines) if line.strip() == right][:1]:
            assert any("#" in line for line in (lines[number - 1], lines[number + 1])), lines[number]
    for right in ("automountServiceAccountToken", "enableServiceLinks"):
        (line,) = (line for line in lines if right in line)
        assert "#" in line


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda folder: folder.name)
def test_an_overlay_is_the_base_with_components(folder: Path) -> None:
    overlay = document(folder / "kustomization.yaml")
    assert overlay.keys() == {"apiVersion", "kind", "resources", "components"}
    assert [(folder / path).resolve() for path in overlay["resources"]] == [BASE]
    assert all((folder / path).resolve() in COMPONENTS.values() for path in overlay["components"])
    assert [path.name for path in folder.iterdir()] == ["kustomization.yaml"]


@pytest.mark.parametrize("folder", COMPONENTS.values(), ids=lambda folder: folder.name)
def test_a_component_has_a_purpose_and_patches_by_name(folder: Path) -> None:
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


@pytest.mark.parametrize("combination", PLUGINS)
def test_the_plugins_configuration_scans_mounted_directories(combination: str) -> None:
    entry = container(pod_of(combination), "plugin")
    values = parsed(entry)
    root, file = PurePosixPath(values["host_root"]), PurePosixPath(values["config"])
    (text,) = (e["data"][file.name] for e in documents(combination) if file.name in e.get("data", {}))
    seen = [
        PurePosixPath("/") / place.relative_to(root)
        for mount in entry["volumeMounts"]
        if (place := PurePosixPath(mount["mountPath"])).is_relative_to(root)
    ]
    plans = load(text.encode(), combination)
    assert plans
    directories = [PurePosixPath(found) for plan in plans for found in scanned(plan.sources)]
    assert directories
    for directory in directories:
        assert any(directory.is_relative_to(place) for place in seen), f"{directory} is not mounted"


def scanned(sources: tuple[object, ...]) -> Iterator[str]:
    for source in sources:
        match source:
            case Files():
                yield source.directory
            case Glob():
                yield from source.paths
            case Nvidia():
                yield from ("/dev", "/proc/driver/nvidia", "/sys/bus/pci/devices")
            case _:
                raise AssertionError(f"add the directories of {type(source).__name__} here")


def test_the_kubelets_directories_match_the_commands_defaults() -> None:
    combination = "base"
    pod = pod_of(combination)
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    for entry in pod["containers"]:
        root = PurePosixPath(parsed(entry)["kubelet_root"])
        places = {mount["name"]: mount for mount in entry["volumeMounts"]}
        for name in ("pod-resources", "device-plugins"):
            assert hosts[name] == places[name]["mountPath"] == str(root / name)


def test_the_api_server_component_has_minimal_rights() -> None:
    combination = "apiserver"
    objects = documents(combination)
    assert only(objects, "ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    # Only the exporter mounts the token, at the path that it reads.
    pod = pod_of(combination)
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


def test_the_dra_component_has_minimal_rights_and_works_with_that_of_pods() -> None:
    slices = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch"]}
    claims = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    assert only(documents("dra"), "ClusterRole")["rules"] == [slices, claims]
    combination = "apiserver-and-dra"
    objects = documents(combination)
    assert len([entry for entry in objects if entry["kind"] == "ClusterRoleBinding"]) == 2
    assert only(objects, "NetworkPolicy")["spec"]["egress"][0]["ports"]
    pod = pod_of(combination)
    entry = container(pod, "exporter")
    assert [mount["name"] for mount in entry["volumeMounts"]].count("account") == 1
    assert [volume["name"] for volume in pod["volumes"]].count("account") == 1
    given = environment(entry)
    assert given["DEVICELENS_PODS_SOURCE"] == "apiserver"
    assert given["DEVICELENS_DRA_SOURCE"] == "slices"


def test_the_cdi_component_mounts_what_the_exporter_reads() -> None:
    entry = container(pod_of("cdi"), "exporter")
    places = {mount["mountPath"] for mount in entry["volumeMounts"] if mount["readOnly"]}
    assert {str(path) for path in CDI_DIRECTORIES} <= places
    assert environment(entry)["DEVICELENS_DRA_SOURCE"] == "cdi"


@pytest.mark.parametrize("combination", ["tls", "tls-and-passwords"])
def test_the_web_configuration_names_mounted_files(combination: str) -> None:
    web = document(DEPLOY / "components/tls/web.yaml")
    files = [PurePosixPath(web["tls_server_config"][key]) for key in ("cert_file", "key_file")]
    for entry in pod_of(combination)["containers"]:
        places = [PurePosixPath(mount["mountPath"]) for mount in entry["volumeMounts"]]
        assert all(file.parent in places for file in files)
        given = environment(entry)
        for variable in ("DEVICELENS_PLUGIN_CA_FILE", "DEVICELENS_PLUGIN_PASSWORD_FILE"):
            assert variable not in given or PurePosixPath(given[variable]).parent in places
