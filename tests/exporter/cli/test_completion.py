"""devicelens completion, in a real bash with a real exporter; silent if nothing answers."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from click.testing import CliRunner

from devicelens import COMMANDS, main
from exporter.cli import completion
from exporter.cli.completion import VARIABLE, Bash
from exporter.mapping.model import ClaimHolding, Holder
from harness import scene
from harness.application import application
from harness.commands import serving
from harness.tools import required
from harness.waiting import until_equal

HOLDER = Holder("ml", "llama-0", "trainer")
THROUGH = ClaimHolding(Holder("dra", "asking-0", "main"), "dra", "wish", requested_as="acme.example/big")
SNAPSHOT = scene.snapshot(
    scene.device("card0-1", resource="intel.com/gpu"),
    scene.device("GPU-0::0", HOLDER, parent="GPU-0"),
    scene.device("GPU-0::1", parent="GPU-0"),
    scene.device("0000:3b:02.0", resource="x.example/nic"),
    scene.device("; rm -rf $(HOME)\x1b[2J", resource="x.example/nic"),
    scene.claimed("part-0", THROUGH, resource="acme.example/part"),
)


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with serving(application(scene.state(SNAPSHOT, at=5.0), 6.0)) as url:
        yield url


_TYPED = """
source /dev/stdin <<< "$SCRIPT"
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE}; COMPREPLY=()
    _devicelens_completion devicelens
    printf '%s\\n' "${COMPREPLY[@]}" --
done
"""


async def typed(*lines: str, **environment: str) -> list[list[str]]:
    """What bash would offer after each of `lines`."""
    bash = required("bash", "bash")
    process = await asyncio.create_subprocess_exec(
        *(bash, "--norc", "-c", _TYPED, "bash", *lines),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DEVICELENS_URL": "http://127.0.0.1:1",
            "SCRIPT": CliRunner().invoke(main, ["completion", "bash"]).stdout,
            **environment,
        },
    )
    out, err = await process.communicate()
    # compopt says so where there is no readline, as here.
    assert not [line for line in err.decode().splitlines() if "compopt" not in line]
    assert process.returncode == 0
    replies = out.decode().split("--\n")[:-1]
    return [[word for word in reply.splitlines() if word] for reply in replies]


async def test_bash_completes_commands_flags_and_names(url: str) -> None:
    commands, flags = await typed("devicelens ", "devicelens who --p")
    assert commands == list(COMMANDS)
    assert flags == ["--pod", "--prometheus"]

    async def names() -> list[list[str]]:
        lines = ("devicelens who nic=0000:3b:", f"devicelens who --url {url} =card")
        return await typed(*lines, DEVICELENS_URL=url)

    # bash has broken the word at its last colon, and replaces what is behind it.
    await until_equal("names of the exporter, which has 0.4 s to answer", names, [["02.0"], ["card0-1"]])


COMPLETED = {
    "who -o ": ["table", "wide", "json"],
    "who ": [
        *("acme.example/big", "acme.example/part", "gpu.example.com"),
        *("intel.com/gpu", "nvidia.com/gpu", "x.example/nic"),
    ],
    # By what a pod asked for, and by the driver.
    "who acme.example/big=": ["pool-a/part-0"],
    "who gpu.example.com=": ["pool-a/part-0"],
    "who nvidia.com/gpu=": ["GPU-0::0", "GPU-0::1"],
    "history nvidia.com/gpu=GPU-0::": ["0", "1"],
    # Two resources end so.
    "who gpu=": [],
    "who --pod ": ["dra/asking-0", "ml/llama-0"],
    "who --pod=m": ["ml/llama-0"],
    "who -n ": ["dra", "ml"],
    "who -n ml --pod ": ["llama-0"],
    "who --state ": ["free", "held", "unhealthy"],
    "who --state free,u": ["free,unhealthy"],
    "who --sort-by ": ["since", "device", "pod"],
    "explain 0000:3b:": ["02.0"],
    "explain x.example/nic=": ["0000:3b:02.0"],
    # Nothing answers there, and completion prints no errors.
    "who --url http://127.0.0.1:1 ": [],
    "who --url nonsense ": [],
    "who --socket /x gp": [],
    "who --prometheus http://127.0.0.1:1 --node ": [],
}


@pytest.mark.parametrize("line", COMPLETED)
async def test_names_are_completed_from_the_source(
    url: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "COMP_LINE": f"devicelens {line}",
        "COMP_WORDBREAKS": " =:",
        "DEVICELENS_URL": url,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(completion, "_TIMEOUT", 20.0)
    found = await asyncio.to_thread(Bash(main, {}, "devicelens", VARIABLE).complete)
    assert [word.partition(",")[2] for word in found.splitlines()] == COMPLETED[line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_DEVICELENS_COMPLETE" in result.stdout
    assert "devicelens" in result.stdout
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def test_completion_of_commands_and_flags_imports_nothing_heavy() -> None:
    code = (
        "import sys, devicelens\n"
        "try: devicelens.main(prog_name='devicelens')\n"
        "except SystemExit: pass\n"
        "print(sorted({'grpc', 'aiohttp', 'rich', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {
        **os.environ,
        "_DEVICELENS_COMPLETE": "bash_complete",
        "COMP_LINE": "devicelens who --p",
        "COMP_WORDBREAKS": " =:",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=Path(__file__).parents[3],
    )
    assert done.stderr == "[]\n"
