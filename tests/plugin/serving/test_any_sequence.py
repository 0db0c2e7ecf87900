"""Whatever happens, in whatever order: nothing that is held is dropped, no id is listed twice, no NUMA node
is negative, and no stream is left behind. The simulated kubelet is the judge of each list that it gets.
"""
# pyright: reportPrivateUsage=false

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.served import Served, serving
from plugin.serving.context import Pace, Patience, RegistrationMethod
from runtime.config_file import ConfigError
from simulator import SimulatedKubelet
from simulator.endpoint import PluginClient
from simulator.model import AdmissionError, ContainerError, ContainerSpec, PodSpec

CARDS, FILES, KINDS = "a.b/cards", "a.b/files", "c.d/{{ device.name[:1] }}"
MEMBERS = ("c.d/x", "c.d/y")

CARD = f"""\
- name: {CARDS}
  discover: [{{sysfs: {{paths: [/sys/devices/card*]}}}}]
"""
PARTS: Mapping[str, str] = {
    "cards": CARD + '  health: [{file: {path: "/run/{{ device.name }}", equals: ok}}]\n',
    # The same with another probe and another preference: held devices go over into the new incarnation.
    "cards, probed twice": CARD
    + """\
  health: [{file: {path: "/run/{{ device.name }}", equals: ok}, failures: 2, interval: 100ms}]
  prefer: numa
""",
    "files": f"""\
- name: {FILES}
  discover: [{{files: {{directory: /etc/files}}}}]
  share: {{replicas: 2}}
""",
    # Finds what `files` finds, and whatever comes first has it.
    "more files": """\
- name: a.b/more
  discover: [{glob: {paths: ['/etc/files/*']}}]
  id: 'm-{{ device.name }}'
""",
    "kinds": f"""\
- name: '{KINDS}'
  discover: [{{glob: {{paths: [/dev/*]}}}}]
""",
}
BROKEN = "version: 1\nresources: [{name: nonsense}]\n"


@dataclass
class Life:
    """A plugin's life beside a kubelet."""

    kubelet: SimulatedKubelet
    served: Served
    host: Path
    parts: tuple[str, ...] = ("cards", "files", "kinds")
    pods: int = 0

    async def plug(self, what: str, there: bool) -> None:
        """A card, a file or a device comes or goes."""
        if what.startswith("card"):
            directory = self.host / "sys/devices" / what
            if not there:
                shutil.rmtree(directory, ignore_errors=True)
            elif not directory.exists():
                directory.mkdir()
                (directory / "numa_node").write_text({"0": "-1", "1": "0"}.get(what[-1], "1"))
        else:
            path = self.host / ("etc/files" if what.startswith("f") else "dev") / what
            path.touch() if there else path.unlink(missing_ok=True)

    async def sicken(self, card: str, well: bool) -> None:
        """The file of a card is good, or not."""
        (self.host / "run" / card).write_text("ok" if well else "hot")

    async def pod(self, resource: str, wanted: int) -> None:
        """A pod asks for devices, and gets them or is refused."""
        self.pods += 1
        name = f"p{self.pods}"
        containers = (ContainerSpec("c", resources={resource: wanted}),)
        try:
            async with asyncio.timeout(45):
                await self.kubelet.add_pod(PodSpec(namespace="n", name=name, containers=containers))
        except (AdmissionError, ContainerError):
            pass

    async def end_pods(self, every: int) -> None:
        """Some pods are deleted."""
        for pod in self.kubelet.pods()[::every]:
            await self.kubelet.delete_pod(pod.spec.namespace, pod.spec.name)

    async def restart_kubelet(self, down_for: float) -> None:
        """The kubelet dies and comes back."""
        await self.kubelet.restart(down_for)

    async def lose_stream(self, resource: str) -> None:
        """The kubelet's connection to a plugin breaks."""
        endpoint = self.kubelet._process.life.state.endpoints.get(resource)
        if endpoint is not None and isinstance(endpoint.plugin, PluginClient):
            await endpoint.plugin.close()

    async def lose_sockets(self) -> None:
        """Somebody removes the plugin's sockets."""
        for path in own_files(self.kubelet.root):
            if path.suffix == ".sock":
                path.unlink(missing_ok=True)

    async def reload(self, parts: tuple[str, ...]) -> None:
        """The configuration becomes another, or is broken and stays."""
        try:
            self.served.apply(
                "version: 1\nresources:\n" + "".join(PARTS[part] for part in parts) if parts else BROKEN
            )
        except ConfigError:
            assert not parts
        else:
            self.parts = parts

    async def wait(self, seconds: float) -> None:
        """Time goes by; much of it is only the clock's."""
        self.served.hands.ahead += max(0.0, seconds - 0.05)
        await asyncio.sleep(min(seconds, 0.05))

    async def settle(self) -> None:
        """In the end the kubelet has what the host has."""
        await self.served.until(lambda: self.served.fleet.settled)
        await self.served.until(self.served_well)
        await self.served.until(self.kubelet_is_right)

    def served_well(self) -> bool:
        """Each resource is registered with one stream, or has nothing to register for."""
        return all(
            (status.registered and status.streams == 1) or status.state.startswith("waiting for devices")
            for status in self.served.fleet.statuses()
        )

    def kubelet_is_right(self) -> bool:
        """What is listed as healthy is there, what is there and well is listed, and the kubelet knows."""
        for status in self.served.fleet.statuses():
            entries = [entry.known for entry in status.advertised]
            healthy = {known.device.name for known in entries if known.healthy}
            there = {path.name for path in self.there(status.name)}
            if self.kubelet.allocatable(status.name) != sum(known.healthy for known in entries):
                return False
            if not healthy <= there:
                return False
            if status.name == CARDS:
                well = {card for card in there if (self.host / "run" / card).read_text() == "ok"}
                flapping = {known.device.name for known in entries if known.reason.startswith("flapping")}
                if healthy != well - flapping:
                    return False
        return True

    def there(self, resource: str) -> Sequence[Path]:
        """What is on the host for a resource."""
        directory = {CARDS: "sys/devices", FILES: "etc/files", "a.b/more": "etc/files"}.get(resource, "dev")
        return list((self.host / directory).iterdir())


Step = tuple[Callable[..., object], tuple[object, ...]]

THINGS = st.sampled_from(["card0", "card1", "card2", "f0", "f1", "f2", "x0", "x1", "y0"])
RESOURCES = st.sampled_from([CARDS, FILES, "a.b/more", *MEMBERS])


def step(method: Callable[..., object], *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(method), st.tuples(*arguments))


STEPS = st.lists(
    st.one_of(
        step(Life.plug, THINGS, st.booleans()),
        step(Life.plug, THINGS, st.just(True)),
        step(Life.sicken, st.sampled_from(["card0", "card1", "card2"]), st.booleans()),
        step(Life.pod, RESOURCES, st.integers(1, 2)),
        step(Life.pod, RESOURCES, st.integers(1, 2)),
        step(Life.end_pods, st.integers(1, 2)),
        step(Life.restart_kubelet, st.sampled_from([0.0, 0.02])),
        step(Life.lose_stream, RESOURCES),
        step(Life.lose_sockets),
        step(
            Life.reload,
            st.sampled_from(
                [
                    ("cards", "files", "kinds"),
                    ("cards, probed twice", "files", "kinds"),
                    ("kinds", "more files", "files"),
                    ("files", "more files"),
                    ("kinds", "cards"),
                    (),
                ]
            ),
        ),
        step(Life.wait, st.sampled_from([0.0, 0.02, 1.0, 200.0])),
    ),
    min_size=3,
    max_size=14,
)


def own_files(kubelet: Path) -> list[Path]:
    """What the plugin has in the kubelet's directories."""
    return [*kubelet.glob("*/*devicelens*")]


async def live(root: Path, steps: Sequence[Step], method: RegistrationMethod) -> None:
    host = root / "h"
    for directory in ("sys/devices", "etc/files", "dev", "run"):
        (host / directory).mkdir(parents=True)
    for card in ("card0", "card1", "card2"):
        (host / "run" / card).write_text("ok")
    text = "version: 1\nresources:\n" + "".join(PARTS[part] for part in Life.parts)
    pace = Pace(release=0.05, verify=0.5, verify_again=0.1, rescan=1.0)
    async with SimulatedKubelet(root / "k", registry_interval=0.1) as kubelet:
        async with serving(
            root / "k", host, text, pace=pace, patience=Patience(0.5, 0.2), method=method
        ) as served:
            life = Life(kubelet, served, host)
            for thing in ("card0", "card1", "f0", "x0"):
                await life.plug(thing, there=True)
            for act, arguments in steps:
                result = act(life, *arguments)
                assert asyncio.iscoroutine(result)
                await result
            await life.settle()
        # The plugin has ended: no stream, no socket, no lease of its own.
        await kubelet.wait_until(lambda k: not any(k.streams(name) for name in k.resources()))
        assert own_files(root / "k") == []
        assert kubelet.violations == ()


@pytest.mark.timeout(300)
@settings(max_examples=7)
@given(steps=STEPS, method=st.sampled_from(("socket", "registry")))
def test_no_sequence_drops_what_is_held_or_leaves_a_stream_behind(
    steps: list[Step], method: RegistrationMethod
) -> None:
    with tempfile.TemporaryDirectory(prefix="dl", dir="/tmp") as root:
        asyncio.run(live(Path(root), steps, method))
