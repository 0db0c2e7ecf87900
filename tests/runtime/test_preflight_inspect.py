"""The states of real sockets, directories and limits, also for a user without permission."""

import errno
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtime import preflight
from runtime.preflight import Need, PathState, Use, inspect, memory_limit, process_limits

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def found(path: Path, use: Use, *, made: bool = False) -> PathState:
    ((_, seen),), _ = inspect([Need("x", path, use, "", made=made)])
    return seen


def served(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


def test_a_served_socket_is_connected_and_closed(root: Path) -> None:
    with served(root / "s") as listener:
        assert found(root / "s", Use.CONNECT) == PathState(owner=os.geteuid())
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(1) == b""


def test_a_socket_whose_queue_is_full_is_served(root: Path) -> None:
    with served(root / "s") as listener:
        with ExitStack() as waiting:
            code = 0
            while code != errno.EAGAIN:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                code = client.connect_ex(str(root / "s"))
            assert found(root / "s", Use.CONNECT).error == 0
        assert listener.fileno() >= 0


def test_a_path_that_is_no_served_socket_has_its_error(root: Path) -> None:
    served(root / "s").close()
    assert found(root / "s", Use.CONNECT).error == errno.ECONNREFUSED
    assert found(root / "t", Use.CONNECT) == PathState(errno.ENOENT, owner=os.geteuid())
    gone = found(root / "d/t", Use.CONNECT)
    assert (gone.error, gone.directory) == (errno.ENOENT, False)
    (root / "f").write_text("")
    assert found(root / "f", Use.CONNECT).error == errno.ENOTSOCK
    assert found(root / ("x" * 120), Use.CONNECT).error == errno.ENOENT
    with socket.socket(socket.AF_UNIX) as short:
        short.bind(str(root / "u"))
        deep = root / ("d" * 110)
        deep.mkdir()
        (root / "u").rename(deep / "u")
    assert found(deep / "u", Use.CONNECT).error == errno.ENAMETOOLONG


def test_a_socket_that_is_itself_a_mount_point_is_found(root: Path) -> None:
    with served(root / "a b"):
        proc = root / "proc"
        (proc / "self").mkdir(parents=True)
        spelled = str((root / "a b").resolve()).replace(" ", "\\040")
        (proc / "self/mountinfo").write_text(f"36 35 98:0 /x {spelled} rw - ext4 /dev/root rw\n")
        ((_, seen),), _ = inspect([Need("x", root / "a b", Use.CONNECT, "")], proc)
        assert seen.mounted
    assert not found(root / "a b", Use.CONNECT).mounted


def test_directories_are_readable_writable_or_not_there(root: Path) -> None:
    assert found(root, Use.LIST).error == 0
    writable = found(root, Use.WRITE)
    assert writable.error == 0
    assert writable.free is not None
    assert writable.free > 0
    assert found(root / "a/b", Use.WRITE).error == errno.ENOENT
    assert found(root / "a/b", Use.WRITE, made=True).error == 0
    assert not (root / "a").exists()
    (root / "f").write_text("")
    assert found(root / "f", Use.LIST).error == errno.ENOTDIR


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_read_only_mount_has_its_own_error(root: Path) -> None:
    mounted = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o ro none "$5"; exec "$@"', "sh",
         sys.executable, "-c", SEEN, "WRITE", root],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    if "unshare" in mounted.stderr or "mount:" in mounted.stderr:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    assert mounted.stdout.strip() == f"{errno.EROFS} x: mount {root} without readOnly", mounted.stderr


SEEN = """
import sys
from pathlib import Path
from runtime.preflight import Need, Use, assess, inspect
for use, path in zip(sys.argv[1::2], sys.argv[2::2]):
    found, limits = inspect([Need("x", Path(path), Use[use], "")])
    print(found[0][1].error, *(hint for hint in assess(found, limits).hints if hint.startswith("x")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_permission_gets_the_error_of_the_kernel(root: Path) -> None:
    uses = [("CONNECT", root / "s"), ("LIST", root / "d"), ("WRITE", root / "d")]
    (root / "d").mkdir(mode=0o700)
    with served(root / "s"):
        (root / "s").chmod(0o755)
        # Modules must be readable by that user too, which a checkout in /root is not.
        code = f"import os, sys; sys.path[:0] = {sys.path!r}; import runtime.preflight; os.setuid({NOBODY})"
        ran = subprocess.run(
            [sys.executable, "-c", f"{code}\n{SEEN}", *(text for use in uses for text in use)],
            capture_output=True, text=True, cwd=ROOT, timeout=60, check=True,
        )  # fmt: skip
        hint = f"it belongs to root: run as that user (runAsUser: 0), not as uid {NOBODY}"
        assert ran.stdout.splitlines() == [f"{errno.EACCES} x: {hint}"] * 3
        assert [found(path, Use[use]).error for use, path in uses] == [0, 0, 0]


def test_a_refused_inotify_instance_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_limits().inotify_error in {0, errno.EMFILE}

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(preflight, "Inotify", refuse)
    assert process_limits().inotify_error == errno.EMFILE


def test_limits_of_this_process_are_those_of_proc() -> None:
    seen = process_limits()
    assert seen.uid == os.geteuid()
    assert seen.instances == int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    effective = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    )
    assert seen.capabilities == int(effective.split()[1], 16)


def cgroups(root: Path, text: str, files: dict[str, str]) -> int | None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(text)
    for name, limit in files.items():
        file = root / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    return memory_limit(root / "proc", root / "cgroup")


@pytest.mark.parametrize(
    ("text", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "268435456"}, 268435456),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/a/b\n", {"a/memory.max": "200", "a/b/memory.max": "300", "memory.max": "max"}, 200),
        ("0::/../other\n", {"memory.max": "100"}, 100),
        ("5:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("5:memory:/x\n1:name=systemd:/x\n", {"memory/x/memory.limit_in_bytes": "300"}, 300),
        ("", {}, None),
        ("nonsense", {"memory.max": "7"}, None),
    ],
)
def test_the_memory_limit_is_the_least_of_the_cgroups(
    tmp_path: Path, text: str, files: dict[str, str], limit: int | None
) -> None:
    assert cgroups(tmp_path, text, files) == limit
