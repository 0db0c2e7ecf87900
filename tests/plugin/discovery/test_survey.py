import asyncio
import threading
from pathlib import Path

import pytest

from daemon.directory import DirectoryWatcher
from plugin.core.config import load
from plugin.discovery.follow import Following
from plugin.discovery.host import HostRoot
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import MAX_PATTERNS, Resolved, Survey, SurveyError, Surveyor


def surveyor(host: Path, resource: str) -> Surveyor:
    (plan,) = load(f"version: 1\nresources:\n- name: a.b/c\n{resource}".encode(), "x")
    return Surveyor(plan, HostRoot(host))


def health(survey: Survey) -> dict[str, str]:
    return {sighting.device.id: sighting.reason for sighting in survey.sightings}


def test_a_device_is_healthy_while_all_its_probes_find_what_they_look_for(host: Path) -> None:
    (host / "dev").mkdir()
    (host / "run").mkdir()
    for name in ("dev/v0", "dev/v1", "run/v0.ok"):
        (host / name).touch()
    looks = surveyor(
        host,
        "  discover: [{glob: {paths: [/dev/v*]}}]\n"
        '  health: [{exists: "/run/{{ device.id }}.ok"}, {exists: /run}]\n',
    )
    assert health(looks.look()) == {"v0": "", "v1": "/run/v1.ok is not there"}
    assert set(looks.look().follow) == {("/dev", "v*"), ("/run", "v0.ok"), ("/run", "v1.ok"), ("/", "run")}
    (host / "run/v1.ok").touch()
    assert health(looks.look()) == {"v0": "", "v1": ""}


def test_a_probe_whose_template_fails_is_the_reason(host: Path) -> None:
    looks = surveyor(
        host,
        "  discover: [{static: {devices: [{name: x}, {name: y, attrs: {p: z}}]}}]\n"
        '  health: [{exists: "{{ device.attrs.p }}"}]\n',
    )
    reasons = health(looks.look())
    assert reasons["x"] == "health[0].exists: 'dict object' has no attribute 'p'"
    assert reasons["y"] == "health[0].exists: expected an absolute path"


def test_many_probed_paths_of_one_directory_are_followed_as_one(host: Path) -> None:
    (host / "dev").mkdir()
    for n in range(MAX_PATTERNS + 1):
        (host / f"dev/v{n}").touch()
    looks = surveyor(
        host, '  discover: [{glob: {paths: [/dev/v*]}}]\n  health: [{exists: "{{ device.path }}"}]\n'
    )
    assert looks.look().follow == (("/dev", "*"),)


def test_allocate_looks_again_at_what_it_hands_out(host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/v0").touch()
    looks = surveyor(host, "  discover: [{glob: {paths: [/dev/v*]}}]\n")
    devices = [sighting.device for sighting in looks.look().sightings]
    assert looks.resolve(devices) == Resolved(tuple(devices), ())
    (host / "dev/v0").unlink()
    assert looks.resolve(devices).faults == (("v0", "/dev/v0 is not there"),)


def test_a_source_that_cannot_say_fails_the_look_as_a_whole(host: Path) -> None:
    (host / "colas").touch()
    looks = surveyor(host, "  discover: [{static: {devices: [{name: x}]}}, {files: {directory: /colas}}]\n")
    with pytest.raises(SurveyError, match="/colas: Not a directory"):
        looks.look()


async def test_a_look_comes_back_or_is_given_up(host: Path) -> None:
    offload = Offload(1)
    assert await offload.run(lambda: 1, limit=5.0) == 1
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, limit=5.0)
    release = threading.Event()
    with pytest.raises(StuckError, match="no answer within"):
        await offload.run(release.wait, limit=0.05)
    with pytest.raises(StuckError, match="still hangs"):
        await offload.run(lambda: 1, limit=5.0)
    release.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await offload.run(lambda: 2, limit=5.0) == 2
            except StuckError:
                await asyncio.sleep(0.01)
            else:
                break


async def quiet(*events: asyncio.Event) -> None:
    """Wait until none of the events is set again after having been cleared."""
    async with asyncio.timeout(5):
        while True:
            for event in events:
                event.clear()
            await asyncio.sleep(0.02)
            if not any(event.is_set() for event in events):
                return


async def test_only_entries_that_matter_call_for_a_look(host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/null").touch()
    video, null, late = asyncio.Event(), asyncio.Event(), asyncio.Event()
    watcher = DirectoryWatcher(poll_interval=0.05)
    looks = HostRoot(host)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(watcher.run())
        followings = [Following(watcher, looks, event) for event in (video, null, late)]
        for following, pair in zip(
            followings, [("/dev", "video*"), ("/dev", "nu*"), ("/late", "*")], strict=True
        ):
            following.follow([pair], group)
        async with asyncio.timeout(5):
            await asyncio.gather(video.wait(), null.wait(), late.wait())
        await quiet(video, null, late)
        (host / "dev/null").write_text("written")
        (host / "dev/null").chmod(0o600)
        (host / "dev/nullx").touch()
        async with asyncio.timeout(5):
            await null.wait()
        assert not video.is_set()
        await quiet(video, null)
        (host / "dev/video0").touch()
        async with asyncio.timeout(5):
            await video.wait()
        assert not null.is_set()
        assert not late.is_set()
        (host / "late").mkdir()
        async with asyncio.timeout(5):
            await late.wait()
        for following in followings:
            following.follow([], group)
        run.cancel()


async def test_a_directory_that_is_followed_no_more_is_let_go(host: Path) -> None:
    (host / "a").mkdir()
    changed = asyncio.Event()
    watcher = DirectoryWatcher()
    following = Following(watcher, HostRoot(host), changed)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(watcher.run())
        following.follow([("/a", "*"), ("/b", "x")], group)
        assert following.followed == {host / "a", host / "b"}
        following.follow([("/b", "y")], group)
        assert following.followed == {host / "b"}
        following.follow([], group)
        run.cancel()
