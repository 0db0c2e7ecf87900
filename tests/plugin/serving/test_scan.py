import asyncio
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.config.load import load
from plugin.discovery.host import HostRoot
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.scan import (
    DeviceScanner,
    DirectoryFollower,
    Resolved,
    ScanError,
    ScanResult,
    SharedSources,
)
from runtime.directory import DirectoryWatcher


def scanner(host: Path, resource: str) -> DeviceScanner:
    (plan,) = load(f"version: 1\nresources:\n- name: a.b/c\n{resource}".encode(), "x")
    return DeviceScanner(plan, HostRoot(host))


def ids(survey: ScanResult) -> list[str]:
    return [item.device.id for item in survey.devices]


def test_allocate_looks_again_at_what_it_hands_out(host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/v0").touch()
    looks = scanner(host, "  discover: [{glob: {paths: [/dev/v*]}}]\n")
    devices = [item.device for item in looks.scan().devices]
    assert looks.resolve(devices) == Resolved(tuple(devices), ())
    (host / "dev/v0").unlink()
    assert looks.resolve(devices).faults == (("v0", "/dev/v0 is not there"),)


def test_a_source_that_cannot_say_fails_the_look_as_a_whole(host: Path) -> None:
    (host / "colas").touch()
    looks = scanner(host, "  discover: [{static: {devices: [{name: x}]}}, {files: {directory: /colas}}]\n")
    with pytest.raises(ScanError, match="/colas: Not a directory"):
        looks.scan()


async def test_a_look_comes_back_or_is_given_up(host: Path) -> None:
    offload = Offload(1)
    assert await offload.run(lambda: 1, limit=20.0) == 1
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, limit=20.0)
    release = threading.Event()
    with pytest.raises(StuckError, match="no answer within"):
        await offload.run(release.wait, limit=0.05)
    with pytest.raises(StuckError, match="still hangs"):
        await offload.run(lambda: 1, limit=20.0)
    release.set()
    async with asyncio.timeout(20):
        while True:
            try:
                assert await offload.run(lambda: 2, limit=20.0) == 2
            except StuckError:
                await asyncio.sleep(0.01)
            else:
                break


async def quiet(*events: asyncio.Event) -> None:
    """Wait until none of the events is set again after having been cleared."""
    async with asyncio.timeout(20):
        while True:
            for event in events:
                event.clear()
            await asyncio.sleep(0.02)
            if not any(event.is_set() for event in events):
                return


Event = tuple[str, str | None]


class Touched:
    """What a following told of."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.set = asyncio.Event()

    def __call__(self, directory: str, name: str | None) -> None:
        self.told.append((directory, name))
        self.set.set()


async def test_only_entries_that_matter_call_for_a_look(host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/null").touch()
    telling = [Touched() for _ in range(3)]
    video, null, late = (each.set for each in telling)
    watcher = DirectoryWatcher(poll_interval=0.05)
    looks = HostRoot(host)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(watcher.run())
        followings = [DirectoryFollower(watcher, looks, touched) for touched in telling]
        for following, pair in zip(
            followings, [("/dev", "video*"), ("/dev", "nu*"), ("/late", "*")], strict=True
        ):
            following.follow([pair], group)
        async with asyncio.timeout(20):
            await asyncio.gather(video.wait(), null.wait(), late.wait())
        await quiet(video, null, late)
        (host / "dev/null").write_text("written")
        (host / "dev/null").chmod(0o600)
        (host / "dev/nullx").touch()
        async with asyncio.timeout(20):
            await null.wait()
        assert not video.is_set()
        await quiet(video, null)
        (host / "dev/video0").touch()
        async with asyncio.timeout(20):
            await video.wait()
        assert not null.is_set()
        assert not late.is_set()
        assert telling[1].told[-1] == ("/dev", "nullx")
        assert telling[0].told[-1] == ("/dev", "video0")
        (host / "late").mkdir()
        async with asyncio.timeout(20):
            await late.wait()
        for following in followings:
            following.follow([], group)
        run.cancel()


async def test_a_directory_that_is_followed_no_more_is_let_go(host: Path) -> None:
    (host / "a").mkdir()
    watcher = DirectoryWatcher()
    following = DirectoryFollower(watcher, HostRoot(host), Touched())
    async with asyncio.TaskGroup() as group:
        run = group.create_task(watcher.run())
        following.follow([("/a", "*"), ("/b", "x")], group)
        assert following.followed == {host / "a", host / "b"}
        following.follow([("/b", "y")], group)
        assert following.followed == {host / "b"}
        following.follow([], group)
        run.cancel()


async def test_what_is_written_is_told_where_contents_matter_by_the_paths_that_were_asked_for(
    host: Path,
) -> None:
    (host / "run").mkdir()
    (host / "run/state").touch()
    (host / "link").symlink_to("run")
    watcher, touched = DirectoryWatcher(poll_interval=0.05), Touched()
    following = DirectoryFollower(watcher, HostRoot(host), touched)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(watcher.run())
        following.follow([("/run", "other")], group, [("/link", "state")])
        assert following.followed == {host / "run"}
        async with asyncio.timeout(20):
            while {("/run", None), ("/link", None)} - set(touched.told):
                await touched.set.wait()
                touched.set.clear()
        await quiet(touched.set)
        touched.told.clear()
        (host / "run/state").write_text("bad")
        (host / "run/other").write_text("new")
        async with asyncio.timeout(20):
            while ("/run", "other") not in touched.told:
                await touched.set.wait()
                touched.set.clear()
        assert set(touched.told) == {("/link", "state"), ("/run", "other")}
        following.follow([], group)
        run.cancel()


def test_single_entries_are_looked_at_alone(host: Path) -> None:
    (host / "dev").mkdir()
    for n in range(3):
        (host / f"dev/v{n}").touch()
    looks = scanner(host, "  discover: [{glob: {paths: [/dev/v*]}}]\n")
    assert ids(looks.scan()) == ["v0", "v1", "v2"]
    (host / "dev/v1").unlink()
    (host / "dev/v3").touch()
    (host / "dev/w").touch()
    change = looks.scan_entries([("/dev", name) for name in ("v1", "v2", "v3", "v4", "w")])
    assert change is not None
    assert ([item.device.id for item in change.devices], change.gone) == (["v3"], ("v1",))
    # What they are now is what the next whole look finds.
    assert ids(looks.scan()) == ["v0", "v2", "v3"]


def test_everything_is_looked_at_where_one_entry_does_not_tell(host: Path) -> None:
    (host / "dev/deep").mkdir(parents=True)
    (host / "etc/real").mkdir(parents=True)
    (host / "dev/v0").touch()
    (host / "etc/real/a").touch()
    (host / "etc/a").symlink_to("real/a")
    deep = scanner(host, "  discover: [{glob: {paths: ['/dev/v*', '/dev/*/w*']}}]\n")
    both = scanner(host, "  discover: [{glob: {paths: ['/dev/v*']}}, {glob: {paths: ['/dev/w*']}}]\n")
    same = scanner(host, '  discover: [{glob: {paths: ["/dev/*"]}}]\n  id: "{{ device.name[:1] }}"\n')
    alone = scanner(host, "  discover: [{glob: {paths: ['/dev/v*']}}]\n")
    links = scanner(host, "  discover: [{files: {directory: /etc}}]\n")
    for each in (deep, both, same, alone, links):
        each.scan()
    (host / "dev/v1").touch()
    for looks in (deep, both, same):
        assert looks.scan_entries([("/dev", "v1")]) is None
    (host / "dev/v0").unlink()
    (host / "dev/v1").unlink()
    assert alone.scan_entries([("/dev", "v0"), ("/dev", "v1")]) is None
    assert alone.scan().notes == ("nothing matches /dev/v*",)
    assert links.scan_entries([("/etc", "a")]) is None
    (host / "etc/b").touch()
    change = links.scan_entries([("/etc", "b"), ("/etc", "real")])
    assert change is not None
    assert [item.device.id for item in change.devices] == ["b"]


def test_those_who_share_sources_share_looks(host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/v0").touch()
    (plan,) = load(b"version: 1\nresources:\n- name: a.b/c\n  discover: [{glob: {paths: [/dev/v*]}}]\n", "x")
    now = [10.0]
    sources = SharedSources(plan, HostRoot(host), lambda: now[0])
    one, two = DeviceScanner(plan, HostRoot(host), sources), DeviceScanner(plan, HostRoot(host), sources)
    assert ids(one.scan(10.0)) == ["v0"]
    (host / "dev/v1").touch()
    now[0] = 11.0
    assert ids(two.scan(10.0)) == ["v0"]  # wished for before the last look began
    assert ids(two.scan(10.5)) == ["v0", "v1"]
    assert ids(one.scan(10.5)) == ["v0", "v1"]
    (host / "dev/v2").touch()
    assert ids(one.scan()) == ["v0", "v1", "v2"]


LOOKS = st.lists(
    st.tuples(st.sampled_from(["a0", "a1", "b0", "b1", "c"]), st.booleans()), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(LOOKS, max_size=8), by_letter=st.booleans())
def test_single_looks_come_to_what_a_whole_look_finds(
    steps: list[list[tuple[str, bool]]], by_letter: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as root:
        (Path(root) / "dev").mkdir()
        template = "{{ device.name[:1] }}" if by_letter else "{{ device.name }}"
        text = f'  discover: [{{glob: {{paths: [/dev/*]}}}}]\n  id: "{template}"\n'
        looks = scanner(Path(root), text)
        known = {item.device.id: item.device.path for item in looks.scan().devices}
        for step in steps:
            for name, there in step:
                path = Path(root) / "dev" / name
                if there:
                    path.touch()
                else:
                    path.unlink(missing_ok=True)
            change = looks.scan_entries([("/dev", name) for name, _ in step])
            if change is None:
                known = {item.device.id: item.device.path for item in looks.scan().devices}
            else:
                known = {i: path for i, path in known.items() if i not in change.gone}
                known |= {item.device.id: item.device.path for item in change.devices}
            there_now = {path.name for path in (Path(root) / "dev").iterdir()}
            assert {path.rpartition("/")[2] for path in known.values()} <= there_now
            assert set(known) == ({name[:1] for name in there_now} if by_letter else there_now)
