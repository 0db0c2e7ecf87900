"""Scans of the host, of single entries of it, and the directories whose changes call for one."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.served import configuration
from harness.waiting import until_holds
from plugin.config.load import load
from plugin.config.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.serving.scan import (
    DeviceScanner,
    DirectoryFollower,
    Resolved,
    ScanError,
    ScanResult,
    SharedSources,
)
from runtime.directory import DirectoryWatcher


@cache
def plan(resource: str) -> ResourcePlan:
    (made,) = load(configuration(f"- name: a.b/c\n{resource}").encode(), "x")
    return made


def scanner(host: Path, resource: str) -> DeviceScanner:
    return DeviceScanner(plan(resource), HostRoot(host))


def ids(survey: ScanResult) -> list[str]:
    return [item.id for item in survey.devices]


def test_allocate_resolves_devices_as_they_are_now(dev: Path, host: Path) -> None:
    (dev / "v0").touch()
    scans = scanner(host, "  discover: [{glob: {paths: [/dev/v*]}}]\n")
    devices = list(scans.scan().devices)
    assert scans.resolve(devices) == Resolved(tuple(devices), ())
    (dev / "v0").unlink()
    assert scans.resolve(devices).faults == (("v0", "/dev/v0 is not there"),)


def test_a_source_that_fails_fails_the_scan_as_a_whole(host: Path) -> None:
    (host / "colas").touch()
    scans = scanner(host, "  discover: [{static: {devices: [{name: x}]}}, {files: {directory: /colas}}]\n")
    with pytest.raises(ScanError, match="/colas: Not a directory"):
        scans.scan()


Touched = set[tuple[str, str | None]]


@asynccontextmanager
async def following(
    host: Path, entries: Sequence[tuple[str, str]], contents: Sequence[tuple[str, str]] = ()
) -> AsyncGenerator[Touched]:
    """Follow (directory, pattern) pairs; yields the touched (directory, name) pairs once all are watched."""
    touched: Touched = set()
    watcher = DirectoryWatcher(poll_interval=0.05)
    follower = DirectoryFollower(watcher, HostRoot(host), lambda path, name: touched.add((path, name)))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(watcher.run())
        follower.follow(entries, group, contents)
        await touched_by(touched, *((directory, None) for directory, _ in (*entries, *contents)))
        yield touched
        follower.follow([], group)
        assert follower.followed == frozenset()
        run.cancel()


async def touched_by(touched: Touched, *expected: tuple[str, str | None]) -> None:
    await until_holds(lambda: touched >= set(expected), f"{expected}")


async def test_only_entries_that_match_call_for_a_scan(dev: Path, host: Path) -> None:
    (dev / "null").touch()
    async with following(host, [("/dev", "video*"), ("/dev", "nu*"), ("/late", "*")]) as touched:
        (host / "late").mkdir()
        (dev / "null").write_text("written")
        (dev / "null").chmod(0o600)
        for name in ("other", "nullx", "video0"):
            (dev / name).touch()
        (host / "late/x").touch()
        await touched_by(touched, ("/dev", "nullx"), ("/dev", "video0"))
        assert touched - {("/late", "x")} == {
            ("/dev", None),
            ("/late", None),
            ("/dev", "nullx"),
            ("/dev", "video0"),
        }


async def test_writes_count_for_contents_alone_by_the_paths_of_the_configuration(host: Path) -> None:
    (host / "run").mkdir()
    (host / "run/state").touch()
    (host / "link").symlink_to("run")
    async with following(host, [("/run", "other")], [("/link", "state")]) as touched:
        (host / "run/state").write_text("bad")
        (host / "run/other").write_text("new")
        await touched_by(touched, ("/link", "state"), ("/run", "other"))
        assert touched == {("/run", None), ("/link", None), ("/link", "state"), ("/run", "other")}


def test_single_entries_are_scanned_alone(dev: Path, host: Path) -> None:
    for n in range(3):
        (dev / f"v{n}").touch()
    scans = scanner(host, "  discover: [{glob: {paths: [/dev/v*]}}]\n")
    assert ids(scans.scan()) == ["v0", "v1", "v2"]
    (host / "dev/v1").unlink()
    (host / "dev/v3").touch()
    (host / "dev/w").touch()
    change = scans.scan_entries([("/dev", name) for name in ("v1", "v2", "v3", "v4", "w")])
    assert change is not None
    assert ([item.id for item in change.devices], change.gone) == (["v3"], ("v1",))
    # What they are now is what the next full scan finds.
    assert ids(scans.scan()) == ["v0", "v2", "v3"]


@pytest.mark.parametrize(
    "resource",
    [
        "discover: [{glob: {paths: ['/dev/v*', '/dev/*/w*']}}]",
        "discover: [{glob: {paths: ['/dev/v*']}}, {glob: {paths: ['/dev/w*']}}]",
        'discover: [{glob: {paths: ["/dev/*"]}}]\n  id: "{{ device.name[:1] }}"',
    ],
    ids=["deeper pattern", "two sources", "two devices of one id"],
)
def test_everything_is_scanned_where_one_entry_does_not_tell(resource: str, dev: Path, host: Path) -> None:
    (dev / "deep").mkdir()
    (dev / "v0").touch()
    scans = scanner(host, f"  {resource}\n")
    scans.scan()
    (dev / "v1").touch()
    assert scans.scan_entries([("/dev", "v1")]) is None


def test_everything_is_scanned_when_no_device_is_left(dev: Path, host: Path) -> None:
    (dev / "v0").touch()
    scans = scanner(host, "  discover: [{glob: {paths: ['/dev/v*']}}]\n")
    scans.scan()
    (dev / "v0").unlink()
    assert scans.scan_entries([("/dev", "v0")]) is None
    assert scans.scan().notes == ("nothing matches /dev/v*",)


def test_everything_is_scanned_for_a_link_to_a_file(host: Path) -> None:
    (host / "etc/real").mkdir(parents=True)
    (host / "etc/real/a").touch()
    (host / "etc/a").symlink_to("real/a")
    links = scanner(host, "  discover: [{files: {directory: /etc}}]\n")
    links.scan()
    assert links.scan_entries([("/etc", "a")]) is None
    (host / "etc/b").touch()
    change = links.scan_entries([("/etc", "b"), ("/etc", "real")])
    assert change is not None
    assert [item.id for item in change.devices] == ["b"]


def test_what_is_unchanged_is_the_same_object_in_the_next_scan(dev: Path, host: Path) -> None:
    (dev / "v0").touch()
    (dev / "v1").symlink_to("v0")
    (dev / "v2").touch()
    sources = SharedSources(plan("  discover: [{glob: {paths: [/dev/v*]}}]\n"), HostRoot(host))
    (first,) = sources.scan()
    (dev / "v1").unlink()
    (dev / "v1").symlink_to("v2")
    (dev / "v3").touch()
    (second,) = sources.scan()
    assert [item.name for item in second.found] == ["v0", "v1", "v2", "v3"]
    assert [new is old for new, old in zip(second.found, first.found, strict=False)] == [True, False, True]
    assert second.found[1].attrs == {"target": "/dev/v2"}


def test_scanners_that_share_sources_share_scans(dev: Path, host: Path) -> None:
    (host / "dev/v0").touch()
    made, root, now = plan("  discover: [{glob: {paths: [/dev/v*]}}]\n"), HostRoot(host), [10.0]
    sources = SharedSources(made, root, lambda: now[0])
    one, two = DeviceScanner(made, root, sources), DeviceScanner(made, root, sources)
    assert ids(one.scan(10.0)) == ["v0"]
    (host / "dev/v1").touch()
    now[0] = 11.0
    assert ids(two.scan(10.0)) == ["v0"]  # requested before the last scan began
    assert ids(two.scan(10.5)) == ["v0", "v1"]
    assert ids(one.scan(10.5)) == ["v0", "v1"]
    (host / "dev/v2").touch()
    assert ids(one.scan()) == ["v0", "v1", "v2"]


ENTRIES = st.lists(
    st.tuples(st.sampled_from(["a0", "a1", "b0", "b1", "c"]), st.booleans()), min_size=1, max_size=4
)


@settings(max_examples=30, deadline=None)
@given(
    source=st.sampled_from(["glob: {paths: [/dev/*]}", "regex: {pattern: .*}", "files: {directory: /dev}"]),
    steps=st.lists(ENTRIES, max_size=8),
    by_letter=st.booleans(),
)
def test_entries_and_full_scans_agree(
    source: str, steps: list[list[tuple[str, bool]]], by_letter: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as root:
        (Path(root) / "dev").mkdir()
        template = "{{ device.name[:1] }}" if by_letter else "{{ device.name }}"
        text = f'  discover: [{{{source}}}]\n  id: "{template}"\n'
        scans = scanner(Path(root), text)
        known = {item.id: item.path for item in scans.scan().devices}
        for step in steps:
            for name, there in step:
                path = Path(root) / "dev" / name
                if there:
                    path.touch()
                else:
                    path.unlink(missing_ok=True)
            change = scans.scan_entries([("/dev", name) for name, _ in step])
            if change is None:
                known = {item.id: item.path for item in scans.scan().devices}
            else:
                known = {i: path for i, path in known.items() if i not in change.gone}
                known |= {item.id: item.path for item in change.devices}
            there_now = {path.name for path in (Path(root) / "dev").iterdir()}
            assert {path.rpartition("/")[2] for path in known.values()} <= there_now
            assert set(known) == ({name[:1] for name in there_now} if by_letter else there_now)
