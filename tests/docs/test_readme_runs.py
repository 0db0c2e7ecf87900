"""The commands of README.md, docs/command-line.md and docs/simulator.md run as shown."""

import re
import shlex
import shutil
import tempfile
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import pytest

from harness import owners
from harness.processes import Process
from harness.waiting import until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SIMULATOR = (ROOT / "docs" / "simulator.md").read_text()
SECTION = README.split("\n## Ask it\n")[1].split("\n## ")[0]
FIRST = (ROOT / "docs" / "command-line.md").read_text().split("```console\n")[1].split("```")[0]
"""The examples that docs/command-line.md begins with."""
SHOWN = dict.fromkeys(re.findall(r"^\$ devicelens (\w.*?) *(?:#.*)?$", SECTION + FIRST, re.MULTILINE))
LINES = [line for line in SHOWN if "nvidia.com" not in line]
"""The demo's GPUs are of another resource."""
POD = "training/resnet-x2x9k"
SEED = "5"
"""A device of a pod fails early in this demo, and stays so: there is an anomaly to show."""

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(120)]


@pytest.fixture
async def demo() -> AsyncGenerator[str]:
    """The address of a demo in which a pod of a training has come."""
    async with Process("demo", "--web.listen-address", "127.0.0.1:0", "--seed", SEED) as process:
        url = (await process.line("  status page ", limit=60)).split()[-1].rstrip("/")
        await process.line("pod came", limit=60)
        yield url


async def test_what_is_beside_the_demo_answers(demo: str) -> None:
    """At the port that it has here, rather than at the default one."""
    for line in LINES:
        answered = partial(answers, shlex.split(line, comments=True), demo)
        await until(f"devicelens {line}", answered, limit=40)


async def answers(words: list[str], url: str) -> bool:
    """False where the pod has gone meanwhile, or the device is another one."""
    given = [await some_pod(url) if word == POD else word for word in (*words, "--url", url)]
    if "--watch" in given:
        return await prints_at_once(given)
    status, out, errors = await owners.devicelens_again(*given)
    assert "Traceback" not in errors
    if "--at" in given:  # the demo has just begun
        return status == 3 and "holders before " in errors
    assert status in {0, 3}, errors
    return status == 0 and out != ""


async def some_pod(url: str) -> str:
    document = await owners.get_json(url, "/api/v1/pods")
    return next((f"{pod['namespace']}/{pod['name']}" for pod in document["pods"]), POD)


async def prints_at_once(words: list[str]) -> bool:
    """Whether it begins with what is held, and ends well when it is interrupted."""
    async with Process(*words) as watching:
        await watching.line("  held  ", limit=30)
        return await watching.stop() == 0


async def test_the_kubelet_without_a_node_is_led_as_shown() -> None:
    lines = re.findall(r"^\$ devicelens (kubelet .*)$", SIMULATOR, re.MULTILINE)
    begun, pod, *led, replayed = lines
    assert "--replay" in replayed  # done in tests/e2e/test_recordings.py
    faults = re.search(r"# or (.*); none ends it$", next(line for line in led if " fault " in line))
    assert faults is not None
    led += [
        f"kubelet fault {faults[1].replace(',', '')} --kubelet.root /tmp/k",
        "kubelet fault none --kubelet.root /tmp/k",
    ]
    directory = tempfile.mkdtemp(prefix="dl-")

    def words(line: str) -> list[str]:
        return [directory if word == "/tmp/k" else word for word in shlex.split(line, comments=True)]

    try:
        async with Process(*words(begun.removesuffix("&"))) as kubelet:
            await kubelet.line("msg=ready", limit=40)
            for line in led:
                status, _, errors = await owners.devicelens_again(*words(line))
                assert status == 0, f"{line}: {errors}"
            # Nobody serves it here.
            status, _, errors = await owners.devicelens_again(*words(pod))
            assert (status, "OutOfexample.com/gpu" in errors) == (1, True), errors
    finally:
        shutil.rmtree(directory)
