import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugin.discovery import beneath
from plugin.discovery.host import MAX_LINKS, HostRoot


def test_links_are_followed_as_the_host_would_and_never_lead_out(host: Path) -> None:
    (host / "dev/by-id").mkdir(parents=True)
    (host / "dev/video0").touch()
    (host / "dev/by-id/cam").symlink_to("../video0")
    (host / "dev/abs").symlink_to("/dev/video0")
    (host / "up").symlink_to("../../../../../../dev/video0")
    (host / "d").symlink_to("/dev/by-id")
    files = HostRoot(host)
    for path in ("/dev/by-id/cam", "/dev/abs", "/up", "/d/cam", "/d/../video0"):
        assert files.real(path) == "/dev/video0"
        assert files.exists(path)
    # What is only on this machine, not in the tree, is not there.
    (host / "etc").symlink_to("/etc")
    assert not files.exists("/etc/passwd")
    assert not files.exists("/up/x")


def test_a_loop_of_links_is_not_there(host: Path) -> None:
    (host / "a").symlink_to("b")
    (host / "b").symlink_to("/a")
    assert not HostRoot(host).exists("/a")
    with pytest.raises(OSError, match="Too many levels"):
        HostRoot(host).real("/a")
    for n in range(MAX_LINKS):
        (host / f"l{n}").symlink_to(f"l{n + 1}")
    (host / f"l{MAX_LINKS}").touch()
    assert HostRoot(host).exists("/l0")


def test_entries_have_the_status_of_their_targets(host: Path) -> None:
    (host / "d").mkdir()
    (host / "d/file").touch()
    (host / "d/link").symlink_to("/d/file")
    (host / "d/dangling").symlink_to("/nowhere")
    found = {entry.name: entry for entry in HostRoot(host).entries("/d")}
    assert found["link"].status is not None
    assert stat.S_ISREG(found["link"].status.st_mode)
    assert found["dangling"].status is None


def test_host_paths_of_mounts_are_created_once(host: Path) -> None:
    files = HostRoot(host)
    (host / "tmp").mkdir()
    for kind in ("directory", "file"):
        files.make(f"/tmp/{kind}", kind)
        files.make(f"/tmp/{kind}", kind)
    assert (host / "tmp/directory").is_dir()
    assert (host / "tmp/file").is_file()


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_link_in_place_of_the_host_path_of_a_mount_is_refused(host: Path, kind: str) -> None:
    (host / "tmp").mkdir()
    (host / "real").mkdir()
    (host / "tmp/x").symlink_to("/real")
    with pytest.raises(OSError, match="not a"):
        HostRoot(host).make("/tmp/x", kind)
    with pytest.raises(FileNotFoundError):
        HostRoot(host).make("/none/x", kind)


def test_a_path_that_cannot_be_read_is_an_error(host: Path) -> None:
    with pytest.raises(OSError, match="File name too long"):
        HostRoot(host).exists("/" + "x" * 300)


def test_within_reading_once_each_path_is_read_once(host: Path) -> None:
    files = HostRoot(host)
    (host / "a").symlink_to("first")
    (host / "first").touch()
    (host / "second").mkdir()
    with files.reading_once():
        first = files.stat("/a")
        (host / "a").unlink()
        (host / "a").symlink_to("second")
        assert files.stat("/a") is first
        assert files.real("/a") == "/first"
        assert not files.exists("/late")
        (host / "late").touch()
        assert files.exists("/late")  # what is missing is not remembered
    assert stat.S_ISDIR(files.stat("/a").st_mode)
    assert files.real("/a") == "/second"


_PARTS = st.sampled_from(["a", "b", "c", ".", "..", "", ".hidden"])
_PATHS = st.lists(_PARTS, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts))


def _stated(files: HostRoot, path: str) -> object:
    """What is at a path, with its links followed; or the error."""
    try:
        status = files.stat(path)
        return status.st_ino, files.real(path)
    except OSError as error:
        return error.errno, error.filename


@pytest.mark.parametrize("missing", [False, True])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(st.tuples(_PATHS, st.none() | st.text("abc./", max_size=6)), max_size=8), asked=_PATHS)
def test_a_path_is_the_same_within_reading_once(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    missing: bool,
    made: list[tuple[str, str | None]],
    asked: str,
) -> None:
    """A path without links is read in another way there."""
    monkeypatch.setattr(beneath.openat2, "missing", missing)
    root = tmp_path_factory.mktemp("host")
    for path, target in made:
        place = root / path.strip("/").replace("..", "d")
        with suppress(OSError):  # the parts may be there, as something else
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir() if target is None else place.symlink_to(target or "x")
    for shown, path in ((root, asked), (Path("/"), f"{root}{asked}")):
        files = HostRoot(shown)
        with files.reading_once():
            assert _stated(files, path) == _stated(HostRoot(shown), path)


def test_a_path_with_nul_is_refused_within_reading_once(host: Path) -> None:
    (host / "a").touch()
    files = HostRoot(host)
    with files.reading_once(), pytest.raises(ValueError, match="null"):
        files.stat("/a\0b")
