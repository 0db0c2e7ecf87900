"""Resources that devices name, claims between resources, and what a reload does to both."""

import time
from pathlib import Path

import pytest

from harness.scripted import pod
from harness.served import Node, Served, configuration, glob, static
from plugin.discovery.glob import Glob
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings
from plugin.serving.context import Pace

UNSHARED = glob("a.b/one", "/dev/one*")


def family(template: str = "a.b/{{ device.name[:3] }}", more: str = "") -> str:
    return glob(template, "/dev/*", more)


def states(served: Served) -> dict[str, str]:
    return {status.name: status.state for status in served.fleet.statuses()}


async def test_members_come_as_devices_name_them_and_stay(node: Node, dev: Path) -> None:
    async with node.serve(configuration(family())) as served:
        name = "a.b/{{ device.name[:3] }}"
        await served.until(lambda: states(served)[name] == "waiting for devices: nothing matches /dev/*")
        assert served.status(name).ready
        for device in ("one1", "one2", "two1"):
            (dev / device).touch()
        # Long before the next periodic scan.
        await node.offers({"a.b/one": 2, "a.b/two": 1})
        assert list(states(served)) == ["a.b/one", "a.b/two"]
        await node.kubelet.add_pod(pod("p", "a.b/two"))
        (dev / "two1").unlink()
        await node.allocatable("a.b/two", 0)
        assert node.kubelet.capacity("a.b/two") == 1
        assert list(states(served)) == ["a.b/one", "a.b/two"]
        (dev / "two1").touch()
        await node.allocatable("a.b/two")
        await served.registered("a.b/two")
        tally = served.status("a.b/two").counters
        assert (tally.registrations, tally.allocations) == (1, 1)


async def test_a_bad_name_is_left_out(node: Node, dev: Path, caplog: pytest.LogCaptureFixture) -> None:
    (dev / "..x").touch()
    (dev / "bad name").touch()
    (dev / "one1").touch()
    async with node.serve(configuration(family("a.b/{{ device.name }}")), ready={"a.b/one1": 1}) as served:
        assert list(states(served)) == ["a.b/one1"]
    assert "devices left out" in caplog.messages


async def test_a_defect_of_a_source(node: Node, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dev / "one1").touch()
    discover = Glob.scan

    def broken(source: Glob, host: HostRoot) -> Findings:
        if source.paths == ["/dev/*"]:
            raise ValueError("unforeseen")
        return discover(source, host)

    monkeypatch.setattr(Glob, "scan", broken)
    name = "a.b/x{{ device.name }}"
    async with node.serve(configuration(family(name), UNSHARED)) as served:
        await served.until(lambda: states(served)[name] == "discovery fails: ValueError: unforeseen")
        await node.allocatable("a.b/one")


async def test_a_family_shares_scans(node: Node, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        (dev / f"v{n}").touch()
    scans = 0
    discover = Glob.scan

    def counted(source: Glob, host: HostRoot) -> Findings:
        nonlocal scans
        scans += 1
        return discover(source, host)

    monkeypatch.setattr(Glob, "scan", counted)
    ready = {f"a.b/v{n}": 1 for n in range(5)}
    async with node.serve(configuration(family("a.b/{{ device.name }}")), ready=ready) as served:
        for n in range(5):
            await served.quiet(f"a.b/v{n}")
        assert scans < 10  # two for each member if they did not share


async def test_a_reload_restarts_members_of_a_changed_family_only(node: Node, dev: Path) -> None:
    for device in ("one1", "two1"):
        (dev / device).touch()
    other = static("c.d/other", "s")
    async with node.serve(configuration(family(), other)) as served:
        await node.offers({"a.b/one": 1, "c.d/other": 1})
        await node.kubelet.add_pod(pod("p", "a.b/one"))
        for name in ("a.b/one", "c.d/other"):
            await served.registered(name)
        served.apply(configuration(other, family()))  # another order is no change
        await served.until(lambda: served.fleet.settled)
        assert list(states(served)) == ["c.d/other", "a.b/one", "a.b/two"]
        assert served.status("a.b/one").counters.registrations == 1
        # Another plan: members begin anew, adopt what is held, and c.d/other does not notice.
        (dev / "one1").unlink()
        served.apply(configuration(other, family(more="  prefer: packed\n")))
        await served.until(lambda: served.status("a.b/two").counters.registrations == 1)
        await node.allocatable("a.b/two")
        assert served.status("c.d/other").counters.registrations == 1
        served.apply(configuration(other))
        await node.allocatable("a.b/two", 0)
        assert list(states(served)) == ["c.d/other"]


async def test_a_configured_name_is_not_a_familys(node: Node, dev: Path) -> None:
    for device in ("one1", "two1"):
        (dev / device).touch()
    both = {"a.b/one": 1, "a.b/two": 1}
    async with node.serve(configuration(family()), ready=both) as served:
        served.apply(configuration(family(), UNSHARED))
        await served.until(lambda: list(states(served)) == ["a.b/two", "a.b/one"])
        await node.offers(both)
        await served.registered("a.b/two")
        assert served.status("a.b/two").counters.registrations == 1
        served.apply(configuration(family()))
        await served.until(lambda: list(states(served)) == ["a.b/one", "a.b/two"])
        await node.allocatable("a.b/one")


def claimants(*matches: str) -> str:
    """Resources that find the same devices, by different templates."""
    return configuration(
        *(
            glob(f"a.b/r{n}", "/dev/v*", f'  match: "{match}"\n  id: "{n}-{{{{ device.name }}}}"\n')
            for n, match in enumerate(matches)
        )
    )


async def test_the_first_resource_wins(node: Node, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        (dev / f"v{n}").touch()
    discover = Glob.scan

    def slowly(source: Glob, host: HostRoot) -> Findings:
        if source.paths == ["/dev/v*"]:
            time.sleep(0.2)
        return discover(source, host)

    # The first scans slowly, and yet comes first.
    monkeypatch.setattr(Glob, "scan", slowly)
    text = claimants("{{ device.name in ['v0', 'v1'] }}", "{{ device.name != 'v0' }}")
    text += glob("a.b/r2", "/dev/v[13]", "  id: '2-{{ device.name }}'\n")
    async with node.serve(text, ready={"a.b/r0": 2, "a.b/r1": 2}) as served:
        await served.until(lambda: "waiting for devices" in states(served)["a.b/r2"])
        assert served.healthy("a.b/r0") == ["0-v0", "0-v1"]
        assert served.healthy("a.b/r1") == ["1-v2", "1-v3"]


async def test_a_freed_device_is_offered(node: Node, dev: Path, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(2):
        (dev / f"v{n}").touch()
    text = claimants("{{ device.name == 'v0' }}", "{{ device.name in ['v0', 'v1'] }}")
    async with node.serve(text, pace=Pace(rescan=1000.0), ready={"a.b/r0": 1, "a.b/r1": 1}) as served:
        assert caplog.messages.count("devices belong to another resource") == 1
        served.apply(text.replace(text[text.index("- name: 'a.b/r0'") : text.index("- name: 'a.b/r1'")], ""))
        await node.allocatable("a.b/r1", 2)
        # The first comes back, and finds its device taken: who has it keeps it.
        served.apply(text)
        await served.until(lambda: "waiting for devices" in states(served).get("a.b/r0", ""))
        assert served.healthy("a.b/r1") == ["1-v0", "1-v1"]


def by_target() -> str:
    """Two resources, to one of which a link in /dev belongs by what it leads to."""
    more = "  id: 'r{}-v'\n  match: \"{{{{ device.attrs.get('target') {} '/dev/y' }}}}\"\n"
    return configuration(
        glob("a.b/r0", "/dev/v*", more.format(0, "!=")), glob("a.b/r1", "/dev/v?", more.format(1, "=="))
    )


def lead(dev: Path, target: str) -> None:
    """The link leads there from now on."""
    (dev / "new").symlink_to(target)
    (dev / "new").rename(dev / "v0")


async def test_a_device_that_is_gone_and_may_be_held_is_not_another_resources(node: Node, dev: Path) -> None:
    """Its kind changes while a pod has it: only when the pod is gone is it offered as something else."""
    for name in "xy":
        (dev / name).touch()
    lead(dev, "x")
    text = by_target() + static("c.d/other", "s")
    async with node.serve(text, pace=Pace(release=0.05), ready={"a.b/r0": 1, "c.d/other": 1}) as served:
        await node.kubelet.add_pod(pod("p", "a.b/r0"))
        lead(dev, "y")
        await node.allocatable("a.b/r0", 0)
        await served.quiet("a.b/r1")
        assert served.status("a.b/r1").advertised == ()
        await node.kubelet.delete_pod("default", "p")
        # The next allocation rewrites the checkpoint, which knows the ended pod until then.
        await node.kubelet.add_pod(pod("q", "c.d/other"))
        served.hands.ahead += 100.0
        await node.allocatable("a.b/r1")
        assert node.kubelet.capacity("a.b/r0") == 0
