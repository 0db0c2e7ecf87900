"""docs/ on installing say what is there: components, hints, and what can be applied."""

import errno
import re
import shutil
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from exporter.main import needs as exporter_needs
from harness.manifests import COMPONENTS, DEPLOY, kustomize, objects
from harness.markdown import fences
from kubelet.paths import KubeletPaths
from plugin.config.load import load
from plugin.discovery.host import HostRoot
from plugin.discovery.source import STANDARD_DIRECTORIES
from plugin.main import needs as plugin_needs
from plugin.presets import PRESETS
from runtime.preflight import Need, PathState, ProcessLimits, Use, assess

ROOT = DEPLOY.parent
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text()
    for name in ("install", "upgrade", "troubleshooting", "openshift", "release")
}
TROUBLE = re.sub(r"\s+", " ", PAGES["troubleshooting"])
every = pytest.mark.parametrize("page", PAGES)


@every
def test_components_are_there(page: str) -> None:
    for name in re.findall(r"`components/([\w.-]+)`", PAGES[page]):
        assert (DEPLOY / "components" / name).is_dir(), name


def test_each_component_is_in_the_table_and_the_table_names_no_other() -> None:
    rows = set(re.findall(r"^\| `([\w.-]+)` \|", PAGES["install"], re.MULTILINE))
    assert rows == set(COMPONENTS)


def test_presets_are_there() -> None:
    table = PAGES["install"].partition("| in place of |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[2])}
    assert len(named) > 8
    assert named <= PRESETS.keys()


@every
def test_configurations_can_be_applied(page: str, tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    number = 0
    for text in (text for kind, text in fences(PAGES[page]) if kind == "yaml"):
        document = yaml.safe_load(text)
        if "version" in document:
            assert load(text.encode(), page)
            continue
        if document.get("kind") == "Certificate":
            assert set(document["spec"]["dnsNames"]) == {"devicelens"}
            assert document["spec"]["secretName"] == "devicelens-tls"
            continue
        number += 1
        folder = tmp_path / f"cluster{number}"
        folder.mkdir()
        whole = {"resources": ["../deploy/base"], **document}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        (folder / "plugin.yaml").write_text("version: 1\nresources:\n  - preset: nvidia\n")
        assert "DaemonSet" in {entry["kind"] for entry in objects(kustomize(folder))}


def spelled(hint: str) -> str:
    """A hint as the page has it: with … for what varies."""
    text = hint.partition(": ")[2]
    for varying in (
        r"/x(?:/[\w/.-]+)?|/var/run/cdi|(?<=node's )/(?:dev|sys|proc)[\w/]*",
        r"(?<=uid )\d+",
        r"(?<=SELinux keeps )\S+",
        r"(?<=profile )\S+",
    ):
        text = re.sub(varying, "…", text)
    return text


WELL = ProcessLimits(uid=0, descriptors=1 << 20)
SELINUX = "system_u:system_r:container_t:s0"


def every_hint() -> set[str]:
    root = KubeletPaths(Path("/x/kubelet"))
    host = HostRoot(Path("/x/host"))
    plans = load(
        b"version: 1\nresources:\n  - name: a.b/c\n    discover: [{nvidia: {}}]\n"
        b"    cdi: {kind: a.b/c, env: {A: b}}\n",
        "x",
    )
    required = [
        *exporter_needs(
            root,
            pods_source="pods-api",
            history=Path("/x/history/file"),
            cgroups=Path("/x/cgroup"),
            cdi=Path("/x/cdi"),
        ),
        *plugin_needs(root, host, plans, method="socket"),
        *plugin_needs(root, host, plans, method="registry"),
    ]
    looked = [(need, PathState(errno.ENOENT)) for need in required]
    one = Need("x", Path("/x/y"), Use.CONNECT, "")
    two = Need("x", Path("/x/y"), Use.WRITE, "")
    cases = [
        *((pair, WELL) for pair in looked),
        ((one, PathState(errno.ENOENT, directory=False)), WELL),
        ((one, PathState(errno.ECONNREFUSED)), WELL),
        ((one, PathState(errno.ENOTSOCK)), WELL),
        ((one, PathState(mounted=True)), WELL),
        ((two, PathState(errno.EROFS)), WELL),
        ((two, PathState(free=0)), WELL),
        ((one, PathState(errno.EACCES, owner=0)), replace(WELL, uid=7)),
        ((one, PathState(errno.EACCES, owner=9)), WELL),
        ((one, PathState(errno.EACCES, owner=0)), WELL),
        ((one, PathState(errno.EACCES, owner=0)), replace(WELL, label=SELINUX)),
        ((one, PathState(errno.EACCES, owner=0)), replace(WELL, label="docker-default (enforce)")),
        ((one, PathState()), ProcessLimits(uid=0, descriptors=1, memory=1, inotify_error=errno.EMFILE)),
    ]
    return {spelled(hint) for pair, limits in cases for hint in assess([pair], limits).hints}


@pytest.mark.parametrize("hint", sorted(every_hint()))
def test_each_hint_of_the_first_line_is_explained(hint: str) -> None:
    assert f"`{hint}`" in TROUBLE


ANY_SOURCE = b"""
version: 1
resources:
  - name: a.b/c
    discover:
      - {nvidia: {}}
      - {net: {}}
      - {glob: {paths: [/sys/dev/char/*]}}
    cdi: {kind: a.b/c, env: {A: b}}
"""


def test_each_field_of_the_first_line_is_explained() -> None:
    root, host = KubeletPaths(Path("/x")), HostRoot(Path("/"))
    plans = load(ANY_SOURCE, "x")
    named = {
        need.name
        for need in (
            *exporter_needs(
                root, pods_source="auto", history=Path("/h/f"), cgroups=Path("/c"), cdi=Path("/d")
            ),
            *plugin_needs(root, host, plans, method="socket"),
            *plugin_needs(root, host, plans, method="registry"),
        )
    }
    assert {place.removeprefix("/").replace("/", "_") for place in STANDARD_DIRECTORIES} <= named
    limits = assess([], ProcessLimits(uid=0, label="x")).fields
    rows = re.findall(
        r"^\| (`[^|]+) \|", PAGES["troubleshooting"].partition("## What to do")[0], re.MULTILINE
    )
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named | limits.keys() <= told
