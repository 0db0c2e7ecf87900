"""What a pod holds is not given again as something else: over restarts, reloads and other names."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from harness.hosttree import HostTree
from harness.scripted import pod
from harness.served import Node, Serve, configuration
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from plugin.serving.context import Pace
from simulator import SimulatedKubelet
from simulator.devices import Device
from simulator.scripted import ScriptedPlugin

PACE = Pace(release=0.2)
ONE, TWO = "a.b/one", "a.b/two"


def resource(name: str, more: str = "") -> str:
    allocate = "  allocate: {devices: [{host: '{{ device.path }}', container: /dev/x, permissions: rw}]}\n"
    other = f"/dev/{name[-3:]}-*"  # two that find the very same are refused as they are read
    return f"- name: {name}\n  discover: [{{glob: {{paths: ['/dev/one*', '{other}']}}}}]\n{allocate}{more}"


@pytest.fixture
def one(dev: Path) -> Path:
    made = dev / "one1"
    made.touch()
    return made


async def hold(node: Node, *resources: str, name: str = ONE) -> None:
    """Let a pod get the device from a plugin that ends."""
    async with node.serve(configuration(*resources), pace=PACE):
        await node.kubelet.wait_until(lambda k: k.allocatable(name) > 0)
        await node.kubelet.add_pod(pod("p", name))


async def test_a_later_resource_keeps_a_held_device_over_a_restart(node: Node, one: Path) -> None:
    await hold(node, resource(TWO), name=TWO)
    async with node.serve(configuration(resource(ONE), resource(TWO)), pace=PACE, ready={TWO: 1}) as served:
        await served.quiet(ONE)
        assert served.status(ONE).advertised == ()
        assert served.status(ONE).state == "waiting for devices: none was found"
        assert served.healthy(TWO) == ["one1"]


@pytest.mark.parametrize(
    "case",
    [
        (resource(ONE), resource(TWO), TWO, ["one1"]),
        (resource(ONE), resource(ONE, '  match: "{{ false }}"\n') + resource(TWO), TWO, ["one1"]),
        (resource(ONE), resource(ONE, "  id: 'x-{{ device.name }}'\n"), ONE, ["x-one1"]),
        (resource(ONE), resource(ONE, "  share: {replicas: 2}\n"), ONE, ["one1::0", "one1::1"]),
        (resource(ONE, "  share: {replicas: 2}\n"), resource(ONE), ONE, ["one1"]),
        (resource(ONE, "  id: 'x-{{ device.name }}'\n"), resource(TWO), TWO, ["one1"]),
    ],
    ids=["renamed", "hidden", "id", "shared", "no longer shared", "id and name"],
)
@pytest.mark.parametrize("way", ["reload", "restart"])
async def test_a_held_device_is_not_offered_otherwise(
    case: tuple[str, str, str, list[str]], way: str, node: Node, one: Path, tolerated: list[str]
) -> None:
    assert one.exists()
    before, after, name, freed = case
    if way == "restart":
        await hold(node, before)
    start = before if way == "reload" else after
    async with node.serve(configuration(start), pace=PACE) as served:
        if way == "reload":
            await node.kubelet.wait_until(lambda k: k.allocatable(ONE) > 0)
            await node.kubelet.add_pod(pod("p", ONE))
            served.apply(configuration(after))
        await served.until(lambda: served.fleet.settled and served.status(name).counters.discoveries > 1)
        await served.quiet(name)
        assert served.healthy(name) == []
        assert node.kubelet.violations == ()
        # List names the pod no more. The kubelet forgets what it held at the next allocation, and a former
        # resource's devices after five minutes.
        tolerated += ["held by a pod and is no longer advertised", f"advertised by {ONE} too"]
        await node.kubelet.delete_pod("default", "p")
        await served.until(lambda: served.healthy(name) == freed)


async def test_who_shares_a_device_on_purpose_is_not_disturbed(
    node: Node, one: Path, tolerated: list[str]
) -> None:
    tolerated += [f"advertised by {ONE} too", f"advertised by {TWO} too"]
    await hold(node, resource(ONE, "  exclusive: false\n"))
    both = configuration(resource(TWO), resource(ONE, "  exclusive: false\n"))
    async with node.serve(both, pace=PACE) as served:
        await served.until(lambda: served.healthy(ONE) == served.healthy(TWO) == ["one1"])


async def test_replicas_that_are_more_or_called_otherwise_stay_shared(node: Node, one: Path) -> None:
    await hold(node, resource(ONE, "  share: {replicas: 2}\n"))
    async with node.serve(configuration(resource(ONE, "  share: {replicas: 3}\n")), pace=PACE) as served:
        await served.until(lambda: served.healthy(ONE) == ["one1::0", "one1::1", "one1::2"])


# What Allocate gave identifies the device, whatever it is called now.

CARD = "- name: {}\n  discover: [{{files: {{directory: /etc/cards}}}}]\n  id: '{}'\n  allocate: {}\n{}"
CDI = "  cdi: {{kind: a.b/card, name: '{{{{ device.name }}}}', env: {{CARD: one}}}}\n"


@pytest.mark.parametrize(
    ("allocate", "more"),
    [
        ("{mounts: [{host: '{{ device.path }}', container: /card}]}", ""),
        ("{env: {'CARD_{{ device.name }}': '{{ device.path }}'}}", ""),
        ("{env: {X: x}}", CDI.format()),
    ],
    ids=["mount", "variable", "CDI name"],
)
async def test_an_allocate_answer_identifies(allocate: str, more: str, node: Node, tree: HostTree) -> None:
    tree.file("/etc/cards/a")
    before = CARD.format(ONE, "x-{{ device.name }}", allocate, more)
    after = configuration(CARD.format(TWO, "y-{{ device.name }}", allocate, more))
    await hold(node, before)
    tree.file("/etc/cards/b")
    async with node.serve(after, pace=PACE) as served:
        await served.until(lambda: served.healthy(TWO) == ["y-b"])
        await served.quiet(TWO)
        assert served.healthy(TWO) == ["y-b"]
        await node.kubelet.delete_pod("default", "p")
        await served.until(lambda: served.healthy(TWO) == ["y-a", "y-b"])


async def test_an_answer_that_identifies_no_device_keeps_none_back(
    node: Node, tree: HostTree, tolerated: list[str]
) -> None:
    tolerated.append(f"advertised by {ONE} too")
    tree.file("/etc/cards/a")
    given = "{env: {CARD: there}}"
    await hold(node, CARD.format(ONE, "{{ device.name }}", given, ""))
    async with node.serve(
        configuration(CARD.format(TWO, "{{ device.name }}", given, "")), pace=PACE
    ) as served:
        await served.until(lambda: served.healthy(TWO) == ["a"])


@pytest.fixture
async def foreign(kubelet: SimulatedKubelet, root: Path) -> AsyncIterator[None]:
    """Another plugin has given /dev/one1 to a pod."""
    node = pb.ContainerAllocateResponse(devices=[pb.DeviceSpec(host_path="/dev/one1")])

    async def allocate(_ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        return node

    async with ScriptedPlugin(root / "k", "foreign/x", [Device("z")], allocate=allocate) as plugin:
        await plugin.register()
        await kubelet.wait_until(lambda k: k.allocatable("foreign/x") == 1)
        await kubelet.add_pod(pod("p", "foreign/x"))
        yield


@pytest.mark.usefixtures("foreign", "one")
@pytest.mark.parametrize(
    ("shared", "offered"), [("", []), ("  share: {replicas: 2}\n", ["one1::0", "one1::1"])]
)
async def test_devices_of_another_plugin(shared: str, offered: list[str], serve: Serve) -> None:
    async with serve(configuration(resource(ONE, shared)), pace=PACE) as served:
        await served.until(lambda: served.status(ONE).counters.discoveries > 0)
        await served.quiet(ONE)
        await served.until(lambda: served.healthy(ONE) == offered)
