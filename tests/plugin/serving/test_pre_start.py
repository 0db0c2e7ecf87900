"""PreStartContainer: a program runs before each start, within its time; a failure refuses the container."""

import asyncio
from pathlib import Path

import pytest

from harness.scripted import pod
from harness.served import Node
from simulator.model import ContainerError

GPU = "example.com/gpu"


def configuration(command: str, limit: str = "5s", shell: str = "/bin/sh, -c, ") -> str:
    return f"""\
version: 1
resources:
  - name: {GPU}
    discover: [{{static: {{devices: [{{name: a}}, {{name: b, attrs: {{slot: "2"}}}}]}}}}]
    share: {{replicas: 2}}
    pre_start: {{exec: [{shell}{command}], timeout: {limit}}}
"""


async def test_a_program_runs_for_each_device_at_each_start(node: Node, root: Path) -> None:
    log = root / "log"
    text = configuration(f"'echo {{{{ device.id }}}} of {{{{ ids | length }}}} >> {log}'")
    async with node.serve(text, ready={GPU: 4}) as served:
        await node.kubelet.add_pod(pod("p", GPU, 3))
        assert sorted(log.read_text().splitlines()) == ["a of 3", "b of 3"]
        await node.kubelet.restart_container("default", "p", "c")
        assert len(log.read_text().splitlines()) == 4
        assert served.status(GPU).counters.pre_starts == 2


async def test_a_program_runs_once_if_it_names_no_device(node: Node, root: Path) -> None:
    log = root / "log"
    command = f"\"echo {{{{ devices | map(attribute='id') | join(',') }}}} {{{{ resource }}}} >> {log}\""
    async with node.serve(configuration(command), ready={GPU: 4}):
        await node.kubelet.add_pod(pod("p", GPU, 4))
        assert log.read_text() == f"a,b {GPU}\n"


@pytest.mark.parametrize(
    ("command", "limit", "words"),
    [
        (
            "'echo fine; printf \"bad \\033[31m slot\" >&2; exit 3'",
            "5s",
            r"FailedPrecondition.*pre_start: .*: exit status 3: bad \\x1b\[31m slot",
        ),
        ("'seq 100000; exit 1'", "5s", r"exit status 1: …[\\n\d]*100000$"),
        ("'echo begun; sleep 60'", "2s", r"still running after 2 s, killed: begun$"),
        ("'{{ device.attrs.slot }}'", "5s", r"pre_start\.exec\[2\]: 'dict object' has no attribute 'slot'"),
    ],
)
async def test_a_program_that_fails(node: Node, command: str, limit: str, words: str) -> None:
    async with node.serve(configuration(command, limit), ready={GPU: 4}) as served:
        with pytest.raises(ContainerError, match=words):
            await node.kubelet.add_pod(pod("p", GPU, 4))
        tally = served.status(GPU).counters
        assert (tally.pre_starts, tally.pre_start_errors) == (0, 1)


async def test_a_program_that_is_missing(node: Node) -> None:
    async with node.serve(configuration("/usr/bin/no-such-program", shell=""), ready={GPU: 4}):
        with pytest.raises(ContainerError, match=r"pre_start: /usr/bin/no-such-program: No such file"):
            await node.kubelet.add_pod(pod("p", GPU))


async def test_allocate_is_answered_while_a_program_runs(node: Node, root: Path) -> None:
    """The kubelet admits one pod at a time; other resources and streams go on meanwhile."""
    text = configuration(f"'touch {root}/begun; while ! test -e {root}/go; do sleep 0.01; done'")
    async with node.serve(text, ready={GPU: 4}) as served:
        first = asyncio.create_task(node.kubelet.add_pod(pod("p", GPU)))
        await served.until((root / "begun").exists)
        assert served.status(GPU).streams == 1
        assert not first.done()
        (root / "go").touch()
        await first
