"""`devicelens kubelet` as a process."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "devicelens", "kubelet")
PROJECT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DEVICELENS_")}


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=PROJECT,
        env=environment() | variables,
    )


class Running:
    """A simulated kubelet in a process of its own, ready."""

    def __init__(self, root: Path, *flags: str | Path) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [*COMMAND, "--kubelet.root", str(root), *map(str, flags)],
            stderr=subprocess.PIPE,
            cwd=PROJECT,
            env=environment(),
        )
        self.log = ""
        self.until("msg=ready")

    def until(self, text: str) -> None:
        assert self.process.stderr is not None
        end = time.monotonic() + 30
        while text not in self.log:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"waited for {text!r} in: {self.log}"
            content = os.read(self.process.stderr.fileno(), 65536).decode()
            assert content, f"it ended: {self.log}"
            self.log += content

    def do(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, DEVICELENS_KUBELET_ROOT=str(self.root))

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        begin = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(20)
        return status, time.monotonic() - begin


@contextmanager
def running(root: Path, *flags: str | Path) -> Generator[Running]:
    kubelet = Running(root, *flags)
    try:
        yield kubelet
    finally:
        kubelet.process.kill()
        kubelet.process.wait(20)
        assert kubelet.process.stderr is not None
        kubelet.process.stderr.close()


def test_a_day_in_its_life(root: Path) -> None:
    with running(root, "--pods-api", "--node-name", "n1") as kubelet:
        for path in ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "pods-api/pods-api.sock"):
            assert f"{root}/{path}" in kubelet.log
        uid = kubelet.do(
            "pod", "add", "p", "--namespace", "n", "--label", "a=b=c", "--cpus", "2"
        ).stdout.strip()
        assert re.fullmatch(r"[0-9a-f-]{36}", uid)
        refused = kubelet.do("pod", "add", "q", "--request", "example.com/camera=2")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == (
            "Error: OutOfexample.com/camera: Pod was rejected: "
            "Node didn't have enough resource: example.com/camera, requested: 2, used: 0, capacity: 0\n"
        )
        lines = [line.split() for line in kubelet.do("pods").stdout.splitlines()]
        assert [line[:3] for line in lines] == [
            ["NAMESPACE", "NAME", "PHASE"],
            ["default", "q", "Failed"],
            ["n", "p", "Running"],
        ]
        assert kubelet.do("fault", "slow=1s", "rate-limited=2").returncode == 0
        assert json.loads(kubelet.do("fault").stdout)["rate_limited"] == 2
        assert kubelet.do("restart", "--down-for", "10ms").returncode == 0
        assert kubelet.do("pod", "complete", "p", "-n", "n").returncode == 0
        assert kubelet.do("pod", "delete", "p", "-n", "n").returncode == 0
        again = kubelet.do("pod", "delete", "p", "-n", "n")
        assert (again.returncode, again.stderr) == (1, "Error: pod n/p not found\n")
        state = json.loads(kubelet.do("show", "-o", "json").stdout)
        assert (state["node"], state["root"], state["faults"]["slow"]) == ("n1", str(root), 1.0)
        assert "RESOURCE  CAPACITY  ALLOCATABLE  PLUGINS" in kubelet.do("show").stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_whatever_hangs(root: Path, number: int) -> None:
    with running(root, "--hang") as kubelet:
        waiting = subprocess.Popen(
            [*COMMAND, "restart", "--down-for", "1h", "--kubelet.root", str(root)],
            stderr=subprocess.PIPE,
            cwd=PROJECT,
            env=environment(),
        )
        kubelet.until("kubelet down")
        status, seconds = kubelet.end(number)
        assert status == 0
        assert seconds < 2
        _, told = waiting.communicate(timeout=20)
        assert waiting.returncode == 1
        assert told.startswith(b"Error: ")
        assert told.count(b"\n") == 1
    left = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert left == {".simulator/lock"}


def test_a_killed_one_leaves_nothing_that_hinders_the_next(root: Path) -> None:
    with running(root) as kubelet:
        kubelet.process.kill()
        kubelet.process.wait(20)
        assert (root / "simulator.sock").exists()
    with running(root) as kubelet:
        assert kubelet.do("pods").returncode == 0
        assert kubelet.end()[0] == 0


def test_a_recording_is_served(root: Path, recordings: Path) -> None:
    name = "dra-shared-and-inline-claims.list.binpb"
    with running(root, "--replay", recordings / name) as kubelet:
        shown = json.loads(kubelet.do("show", "-o", "json").stdout)["holdings"]
        assert sorted(h["device"] for h in shown) == [f"dev-{n}" for n in (0, 2, 3, 4, 5, 6, 7)]


class TestRefusals:
    def test_a_directory_in_use(self, root: Path) -> None:
        with running(root):
            refused = run("--kubelet.root", root)
            assert refused.returncode == 1
            assert refused.stderr == (
                f"devicelens: {root}: a kubelet serves {root}/device-plugins/kubelet.sock already\n"
            )

    def test_a_real_kubelets_directory(self, root: Path) -> None:
        (root / "config.yaml").write_text("kind: KubeletConfiguration")
        refused = run("--kubelet.root", root)
        assert refused.returncode == 1
        assert "found config.yaml there, which a real kubelet made" in refused.stderr
        assert [path.name for path in root.iterdir()] == ["config.yaml"]

    def test_no_directory_at_all(self) -> None:
        for command in ((), ("show",), ("pod", "delete", "p")):
            refused = run(*command)
            assert refused.returncode == 2
            assert "--kubelet.root is needed, or DEVICELENS_KUBELET_ROOT" in refused.stderr

    def test_a_directory_that_cannot_be_made(self, root: Path) -> None:
        (root / "file").write_text("")
        refused = run("--kubelet.root", root / "file" / "deeper")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "Not a directory" in refused.stderr

    def test_something_that_is_no_recording(self, root: Path) -> None:
        path = root / "x.list.binpb"
        path.write_bytes(b"\xff\xff")
        refused = run("--kubelet.root", root / "k", "--replay", path)
        assert refused.returncode == 1
        assert f"{path}: found something that is no serialized ListPodResourcesResponse" in refused.stderr

    def test_a_fault_that_is_none(self, root: Path) -> None:
        refused = run("--kubelet.root", root, "--error", "BROKEN")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "found 'BROKEN', expected one of ABORTED" in refused.stderr

    @pytest.mark.parametrize("words", ["nonsense", "slow=soon", "rate-limited=x", "registration.garbage"])
    def test_a_fault_s_word_that_is_none(self, root: Path, words: str) -> None:
        refused = run("fault", words, "--kubelet.root", root)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "Invalid value for FAULT: found " in refused.stderr

    @pytest.mark.parametrize("request_", ["camera", "=2", "camera=two"])
    def test_a_request_that_is_none(self, root: Path, request_: str) -> None:
        refused = run("pod", "add", "p", "--kubelet.root", root, "--request", request_)
        assert refused.returncode == 2
        assert f"found '{request_}', expected RESOURCE=N" in refused.stderr

    def test_nothing_that_runs_there(self, root: Path) -> None:
        shutil.rmtree(root)
        refused = run("show", "--kubelet.root", root)
        root.mkdir()
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == (
            f"Error: no simulated kubelet answers at {root}/simulator.sock: No such file or directory\n"
        )


def test_help_of_faults_keeps_its_lines() -> None:
    lines = run("fault", "--help").stdout.splitlines()
    assert "  none           all is well again" in lines
    assert not [line for line in lines if "\\b" in line]
