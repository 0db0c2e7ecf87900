"""What the plugin sees of CDI in the container runtime."""

import pytest

from harness.hosttree import HostTree
from plugin.config.load import load
from plugin.config.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.serving.container_runtime import observe_cdi

CONTAINERD = "/etc/containerd/config.toml"
V2 = '[plugins."io.containerd.grpc.v1.cri"]\n'
V3 = '[plugins."io.containerd.cri.v1.runtime"]\n'
SPECIFIED = "cdi: {kind: a.b/c, directory: /var/run/cdi, env: {A: b}}"


def plans(use: str = SPECIFIED) -> tuple[ResourcePlan, ...]:
    text = f"""\
version: 1
resources:
  - name: a.b/c
    discover: [{{glob: {{paths: [/dev/x*]}}}}]
    {use}
"""
    return load(text.encode(), "x")


@pytest.mark.parametrize(
    ("config", "state", "hint"),
    [
        (f"version = 2\n{V2}enable_cdi = true", f"on in {CONTAINERD}", ""),
        (f"version = 2\n{V2}enable_cdi = false", f"off in {CONTAINERD}", "set enable_cdi = true in"),
        ("version = 2", "not known: /etc/containerd/config.toml does not set enable_cdi", ""),
        ("version = 3", f"on in {CONTAINERD}", ""),
        (f"version = 3\n{V3}enable_cdi = false", f"off in {CONTAINERD}", "set enable_cdi = true in"),
        (f"version = 3\n{V3}cdi_spec_dirs = ['/run/cdi/']", f"on in {CONTAINERD}", ""),
        (
            f"version = 3\n{V3}cdi_spec_dirs = ['/etc/cdi']",
            "does not read /var/run/cdi",
            "add /var/run/cdi to",
        ),
        ("= nonsense", "not known: /etc/containerd/config.toml cannot be read", ""),
        ("x=" + "[" * 5000, "not known: /etc/containerd/config.toml cannot be read", ""),
        ("#" * 300_000, "not known: /etc/containerd/config.toml has more than", ""),
        ("plugins = 1", "not known", ""),
    ],
)
def test_containerd_by_its_configuration(
    tree: HostTree, here: HostRoot, config: str, state: str, hint: str
) -> None:
    tree.file(CONTAINERD, config)
    (found,) = observe_cdi(here, plans())
    assert found.name == "cdi_runtime"
    assert found.state.startswith(state)
    assert found.hint.startswith(hint)
    assert bool(found.hint) == bool(hint)


def test_cri_o(tree: HostTree, here: HostRoot) -> None:
    tree.directory("/etc/crio/crio.conf.d")
    (found,) = observe_cdi(here, plans())
    assert (found.state, found.hint) == ("CRI-O, which has CDI", "")


def test_a_runtime_that_cannot_be_seen_is_not_known(here: HostRoot) -> None:
    for use in (SPECIFIED, 'allocate: {cdi: ["a.b/c={{ device.id }}"]}'):
        (found,) = observe_cdi(here, plans(use))
        assert found.state.startswith("not known: containerd 1.7 with enable_cdi")
        assert found.hint == ""


def test_without_cdi_nothing_is_said(tree: HostTree, here: HostRoot) -> None:
    tree.file(CONTAINERD, f"version = 2\n{V2}enable_cdi = false")
    assert observe_cdi(here, plans("numa: auto")) == ()
