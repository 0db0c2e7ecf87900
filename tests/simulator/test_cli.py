"""`devicelens kubelet` as a process."""

import asyncio
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
from click.testing import CliRunner, Result

from runtime.process import Fatal
from simulator.cli import kubelet as kubelet_command
from simulator.main import main

COMMAND = (sys.executable, "-m", "devicelens", "kubelet")
PROJECT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DEVICELENS_")}


def run(*arguments: str | Path) -> Result:
    """Run a command for a kubelet in this process."""
    return CliRunner(env={"DEVICELENS_KUBELET_ROOT": None}).invoke(kubelet_command, [*map(str, arguments)])


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

    def do(self, *arguments: str) -> Result:
        return run("--kubelet.root", self.root, *arguments)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


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


def test_commands_change_a_running_kubelet(root: Path) -> None:
    with running(root, "--pods-api", "--node-name", "n1") as kubelet:
        for path in ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "pods-api/pods-api.sock"):
            assert f"{root}/{path}" in kubelet.log
        uid = kubelet.do(
            "pod", "add", "p", "--namespace", "n", "--label", "a=b=c", "--cpus", "2"
        ).stdout.strip()
        assert re.fullmatch(r"[0-9a-f-]{36}", uid)
        refused = kubelet.do("pod", "add", "q", "--request", "example.com/camera=2")
        assert (refused.exit_code, refused.stdout) == (1, "")
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
        assert kubelet.do("fault", "slow=1s", "rate-limited=2").exit_code == 0
        assert json.loads(kubelet.do("fault").stdout)["rate_limited"] == 2
        assert kubelet.do("restart", "--down-for", "10ms").exit_code == 0
        assert kubelet.do("pod", "complete", "p", "-n", "n").exit_code == 0
        assert kubelet.do("pod", "delete", "p", "-n", "n").exit_code == 0
        again = kubelet.do("pod", "delete", "p", "-n", "n")
        assert (again.exit_code, again.stderr) == (1, "Error: pod n/p not found\n")
        state = json.loads(kubelet.do("show", "-o", "json").stdout)
        assert (state["node"], state["root"], state["faults"]["slow"]) == ("n1", str(root), 1.0)
        assert "RESOURCE  CAPACITY  ALLOCATABLE  PLUGINS" in kubelet.do("show").stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_kubelet_whose_calls_hang(root: Path, number: int) -> None:
    with running(root, "--hang") as kubelet:
        waiting = subprocess.Popen(
            [*COMMAND, "restart", "--down-for", "1h", "--kubelet.root", str(root)],
            stderr=subprocess.PIPE,
            cwd=PROJECT,
            env=environment(),
        )
        kubelet.until("kubelet down")
        assert kubelet.end(number) == 0
        _, error = waiting.communicate(timeout=20)
        assert waiting.returncode == 1
        assert error.startswith(b"Error: ")
        assert error.count(b"\n") == 1
    left = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert left == {".simulator/lock"}


def test_a_kubelet_starts_after_another_was_killed(root: Path) -> None:
    with running(root) as kubelet:
        kubelet.process.kill()
        kubelet.process.wait(20)
        assert (root / "simulator.sock").exists()
    with running(root) as kubelet:
        assert kubelet.do("pods").exit_code == 0
        assert kubelet.end() == 0


class TestRefusals:
    def test_a_directory_in_use(self, root: Path) -> None:
        with running(root):
            refused = subprocess.run(
                [*COMMAND, "--kubelet.root", str(root)],
                capture_output=True,
                timeout=60,
                check=False,
                cwd=PROJECT,
                env=environment(),
            )
            assert refused.returncode == 1
            assert refused.stderr.decode() == (
                f"devicelens: {root}: a kubelet serves {root}/device-plugins/kubelet.sock already\n"
            )

    @pytest.mark.parametrize(
        ("file", "flags", "said"),
        [
            ("config.yaml", "--kubelet.root {}", "found config.yaml there, which a real kubelet made"),
            ("file", "--kubelet.root {}/file/deeper", "Not a directory"),
            ("file", "--kubelet.root {} --error BROKEN", "found 'BROKEN', expected one of ABORTED"),
            (
                "x.list.binpb",
                "--kubelet.root {0}/k --replay {0}/x.list.binpb",
                "x.list.binpb: found something that is no serialized ListPodResourcesResponse",
            ),
        ],
    )
    async def test_what_cannot_start_says_why(self, root: Path, file: str, flags: str, said: str) -> None:
        (root / file).write_bytes(b"\xff\xff")
        settings = kubelet_command.make_context("kubelet", flags.format(root).split()).params
        with pytest.raises(Fatal, match=said) as refused:
            await main(settings["kubelet_root"], settings, asyncio.Event())
        assert "\n" not in str(refused.value)
        assert (root / file).read_bytes() == b"\xff\xff"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (
                "fault nonsense --kubelet.root /nowhere",
                "Invalid value for FAULT: found 'nonsense', expected a fault",
            ),
            *(
                (f"pod add p --request {request}", f"found '{request}', expected RESOURCE=N")
                for request in ("camera", "=2", "camera=two")
            ),
            *(
                (command, "--kubelet.root is needed, or DEVICELENS_KUBELET_ROOT")
                for command in ("", "show", "pod delete p")
            ),
        ],
    )
    def test_invalid_arguments(self, words: str, said: str) -> None:
        refused = run(*words.split())
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert said in refused.stderr

    def test_no_kubelet_at_the_root(self, root: Path) -> None:
        shutil.rmtree(root)
        refused = run("show", "--kubelet.root", root)
        root.mkdir()
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == (
            f"Error: no simulated kubelet answers at {root}/simulator.sock: No such file or directory\n"
        )


def test_help_of_faults_keeps_its_lines() -> None:
    lines = run("fault", "--help").stdout.splitlines()
    assert "  none           all is well again" in lines
    assert not [line for line in lines if "\\b" in line]
