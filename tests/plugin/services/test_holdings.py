"""What a pod holds is not given again as something else: over restarts, reloads and other names."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.served import Serve, Served
from plugin.serving.context import Pace
from plugin.serving.ownership import NAME
from simulator import SimulatedKubelet
from simulator.model import ContainerSpec, PodSpec

PACE = Pace(release=0.2)
ONE, TWO = "a.b/one", "a.b/two"


def resource(name: str, more: str = "") -> str:
    allocate = "  allocate: {devices: [{host: '{{ device.path }}', container: /dev/x, permissions: rw}]}\n"
    other = f"/dev/{name[-3:]}-*"  # two that find the very same are refused as they are read
    return f"- name: {name}\n  discover: [{{glob: {{paths: ['/dev/one*', '{other}']}}}}]\n{allocate}{more}"


def configuration(*resources: str) -> str:
    return "version: 1\nresources:\n" + "".join(resources)


def pod(name: str, asked: str) -> PodSpec:
    return PodSpec(namespace="default", name=name, containers=(ContainerSpec("c", resources={asked: 1}),))


def healthy(served: Served, name: str) -> list[str]:
    return [entry.id for entry in served.status(name).advertised if entry.known.healthy]


@pytest.fixture
def one(host: Path) -> Path:
    made = host / "dev/one1"
    made.parent.mkdir()
    made.touch()
    return made


async def hold(kubelet: SimulatedKubelet, serve: Serve, name: str, more: str = "") -> None:
    """Let a pod get the device from a plugin that ends."""
    async with serve(configuration(resource(name, more)), pace=PACE):
        await kubelet.wait_until(lambda k: k.allocatable(name) > 0)
        await kubelet.add_pod(pod("p", name))


async def test_a_later_resource_that_a_pod_has_the_device_from_keeps_it_over_a_restart(
    kubelet: SimulatedKubelet, serve: Serve, one: Path
) -> None:
    await hold(kubelet, serve, TWO)
    async with serve(configuration(resource(ONE), resource(TWO)), pace=PACE) as served:
        await kubelet.wait_until(lambda k: k.allocatable(TWO) == 1)
        await served.quiet(ONE)
        assert served.status(ONE).advertised == ()
        assert served.status(ONE).state == "waiting for devices: none was found"
        assert healthy(served, TWO) == ["one1"]


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
async def test_what_is_held_is_not_given_as_something_else_until_it_is_free(
    case: tuple[str, str, str, list[str]], way: str, kubelet: SimulatedKubelet, serve: Serve, one: Path
) -> None:
    assert one.exists()
    before, after, asked, freed = case
    if way == "restart":
        async with serve(configuration(before), pace=PACE):
            await kubelet.wait_until(lambda k: k.allocatable(ONE) > 0)
            await kubelet.add_pod(pod("p", ONE))
    start = before if way == "reload" else after
    async with serve(configuration(start), pace=PACE) as served:
        if way == "reload":
            await kubelet.wait_until(lambda k: k.allocatable(ONE) > 0)
            await kubelet.add_pod(pod("p", ONE))
            served.apply(configuration(after))
        await served.until(lambda: served.fleet.settled and served.status(asked).tally.discoveries > 1)
        await served.quiet(asked)
        assert healthy(served, asked) == []
        await kubelet.delete_pod("default", "p")
        await served.until(lambda: healthy(served, asked) == freed)


async def test_who_shares_a_device_on_purpose_is_not_disturbed(
    kubelet: SimulatedKubelet, serve: Serve, one: Path
) -> None:
    await hold(kubelet, serve, ONE, "  exclusive: false\n")
    both = configuration(resource(TWO), resource(ONE, "  exclusive: false\n"))
    async with serve(both, pace=PACE) as served:
        await served.until(lambda: healthy(served, ONE) == healthy(served, TWO) == ["one1"])


async def test_replicas_that_are_more_or_called_otherwise_stay_shared(
    kubelet: SimulatedKubelet, serve: Serve, one: Path
) -> None:
    await hold(kubelet, serve, ONE, "  share: {replicas: 2}\n")
    async with serve(configuration(resource(ONE, "  share: {replicas: 3}\n")), pace=PACE) as served:
        await served.until(lambda: healthy(served, ONE) == ["one1::0", "one1::1", "one1::2"])


# Devices without a node: containers get an environment variable, and the kubelet knows nothing but an id.


def files(name: str, more: str = "") -> str:
    return configuration(
        f"- name: {name}\n  discover: [{{files: {{directory: /etc/colas}}}}]\n"
        f"  allocate: {{env: {{'COLA_{{{{ device.name }}}}': there}}}}\n{more}"
    )


def written(name: str, more: str = "") -> str:
    return configuration(f"- name: {name}\n  discover: [{{static: {{devices: [{{name: a}}]}}}}]\n{more}")


@asynccontextmanager
async def killed(serve: Serve, record: Path, text: str) -> AsyncGenerator[Served]:
    """A plugin that is killed in the end: it tidies nothing up, and what it has written is there."""
    async with serve(text, pace=PACE) as served:
        yield served
        kept = record.read_bytes()
    record.write_bytes(kept)


@pytest.fixture
def record(root: Path) -> Path:
    return root / "k/device-plugins" / NAME


async def free_once_the_pod_ends(
    kubelet: SimulatedKubelet, serve: Serve, text: str, name: str, freed: list[str]
) -> None:
    async with serve(text, pace=PACE) as served:
        await served.until(lambda: served.fleet.settled and served.status(name).tally.discoveries > 0)
        await served.quiet(name)
        assert healthy(served, name) == []
        await kubelet.delete_pod("default", "p")
        await served.until(lambda: healthy(served, name) == freed)


async def offers(served: Served, ids: list[str]) -> None:
    await served.until(lambda: healthy(served, TWO) == ids)
    await served.quiet(TWO)
    assert healthy(served, TWO) == ids


TWICE = "  share: {replicas: 2}\n"
TWICE_OTHERWISE = "  share: {replicas: 2, id: '{{ n }}-of-{{ id }}'}\n"
OTHER = "  id: 'x-{{ device.name }}'\n"
CASES = pytest.mark.parametrize(
    "case",
    [
        (files(ONE), files(TWO), TWO, ["a"]),
        (files(ONE), files(TWO, OTHER), TWO, ["x-a"]),
        (files(ONE), files(ONE, OTHER), ONE, ["x-a"]),
        (files(ONE, OTHER), files(TWO), TWO, ["a"]),
        (files(ONE, TWICE), files(TWO, TWICE), TWO, ["a::0", "a::1"]),
        (files(ONE, TWICE_OTHERWISE), files(TWO, OTHER), TWO, ["x-a"]),
        (files(ONE), files(TWO, TWICE + OTHER), TWO, ["x-a::0", "x-a::1"]),
        (written(ONE), written(TWO), TWO, ["a"]),
    ],
    ids=[
        "name",
        "name and id",
        "id",
        "id and name",
        "shared",
        "shared no longer",
        "shared now",
        "without a claim",
    ],
)


@CASES
async def test_a_device_without_a_node_is_not_given_twice_after_a_kill(
    case: tuple[str, str, str, list[str]],
    kubelet: SimulatedKubelet,
    serve: Serve,
    colas: Path,
    record: Path,
) -> None:
    before, after, name, freed = case
    (colas / "a").touch()
    async with killed(serve, record, before):
        await kubelet.wait_until(lambda k: k.allocatable(ONE) > 0)
        await kubelet.add_pod(pod("p", ONE))
    await free_once_the_pod_ends(kubelet, serve, after, name, freed)


@CASES
async def test_nor_where_it_was_called_otherwise_before_the_kill(
    case: tuple[str, str, str, list[str]],
    kubelet: SimulatedKubelet,
    serve: Serve,
    colas: Path,
    record: Path,
) -> None:
    before, after, name, freed = case
    (colas / "a").touch()
    async with killed(serve, record, before) as served:
        await kubelet.wait_until(lambda k: k.allocatable(ONE) > 0)
        await kubelet.add_pod(pod("p", ONE))
        served.apply(after)
        await served.until(lambda: served.fleet.settled and served.status(name).tally.discoveries > 0)
        await served.quiet(name)
        assert healthy(served, name) == []
    # Nor after another one that only came and went.
    async with killed(serve, record, after) as served:
        await served.until(lambda: served.fleet.settled and served.status(name).tally.discoveries > 0)
        await served.quiet(name)
    await free_once_the_pod_ends(kubelet, serve, after, name, freed)


async def test_an_id_that_another_device_has_now_stands_for_what_it_was_given_for(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, record: Path
) -> None:
    swapped = files(ONE, """  id: '{{ "b" if device.name == "a" else "a" }}'\n""")
    (colas / "a").touch()
    async with killed(serve, record, files(ONE)):
        await kubelet.wait_until(lambda k: k.allocatable(ONE) == 1)
        await kubelet.add_pod(pod("p", ONE))
    (colas / "b").touch()
    for _ in range(2):
        async with killed(serve, record, swapped) as served:
            await served.until(lambda: healthy(served, ONE) == ["a"])
            await served.quiet(ONE)
            assert healthy(served, ONE) == ["a"]
    async with serve(swapped, pace=PACE) as served:
        await served.until(lambda: healthy(served, ONE) == ["a"])
        await kubelet.delete_pod("default", "p")
        await served.until(lambda: healthy(served, ONE) == ["a", "b"])


@pytest.mark.parametrize(
    "there", [b"{", b'{"version": 1, "resources": ["a.b/one"]}'], ids=["damaged", "older"]
)
async def test_where_nothing_can_be_read_what_is_called_alike_is_taken_for_the_same(
    there: bytes, kubelet: SimulatedKubelet, serve: Serve, colas: Path, record: Path
) -> None:
    (colas / "a").touch()
    async with killed(serve, record, files(ONE)):
        await kubelet.wait_until(lambda k: k.allocatable(ONE) == 1)
        await kubelet.add_pod(pod("p", ONE))
    record.write_bytes(there)
    (colas / "b").touch()
    # By name or id at first; then it is known by its path, whatever it is called.
    last = files(TWO, "  id: 'y-{{ 1 if device.name == \"a\" else 2 }}'\n")
    for text, free in ((files(TWO, OTHER), "x-b"), (last, "y-2")):
        async with killed(serve, record, text) as served:
            await offers(served, [free])
    async with serve(last, pace=PACE) as served:
        await served.until(lambda: healthy(served, TWO) == ["y-2"])
        await kubelet.delete_pod("default", "p")
        await served.until(lambda: healthy(served, TWO) == ["y-1", "y-2"])


async def test_where_nothing_was_ever_written_what_others_give_is_theirs(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, record: Path
) -> None:
    (colas / "a").touch()
    async with killed(serve, record, files(ONE)):
        await kubelet.wait_until(lambda k: k.allocatable(ONE) == 1)
        await kubelet.add_pod(pod("p", ONE))
    record.unlink()
    async with serve(files(TWO), pace=PACE) as served:
        await served.until(lambda: healthy(served, TWO) == ["a"])
