import json
import socket
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from plugin.config.load import load
from plugin.config.plan import ProbePlan
from plugin.devices.device import Device
from plugin.discovery.host import HostRoot
from plugin.serving.prober import get
from plugin.serving.probes import COSTLY, WITHOUT_EVENTS, Question, asked_at_allocate, questions

DEVICE = Device("d0", "d0", "/dev/d0", attrs={"interface": "eth7", "empty": ""})


def probes(*written: object) -> tuple[ProbePlan, ...]:
    devices = [{"name": "d0", "attrs": dict(DEVICE.attrs)}]
    resource = {"name": "a.b/c", "discover": [{"static": {"devices": devices}}], "health": written}
    (plan,) = load(json.dumps({"version": 1, "resources": [resource]}).encode(), "x")
    return plan.probes


def question_of(host: Path, *written: object) -> Question:
    (question,) = questions(probes(*written), DEVICE, HostRoot(host))
    return question


def outcome(host: Path, *written: object) -> str:
    ask = question_of(host, *written).ask
    assert ask is not None
    return ask()


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_exists(host: Path) -> None:
    assert outcome(host, {"exists": "{{ device.path }}"}) == "/dev/d0 is not there"
    put(host / "dev/d0")
    assert outcome(host, {"exists": "{{ device.path }}"}) == ""


@pytest.mark.parametrize(
    ("expectation", "content", "reason"),
    [
        ({"equals": "up"}, " up\n", ""),
        ({"equals": "{{ device.name }}"}, "d1", "found 'd1', expected 'd0'"),
        ({"one_of": ["4: ACTIVE", "5: ACTIVE_DEFER"]}, "4: ACTIVE", ""),
        ({"one_of": ["4", "5"]}, "1", "found '1', expected one of '4', '5'"),
        ({"matches": "4: .*"}, "4: ACTIVE", ""),
        ({"matches": "4"}, "4: ACTIVE", "found '4: ACTIVE', expected what matches 4"),
        ({"not_matches": "f+"}, "00ff", ""),
        ({"not_matches": "f+"}, "ffff", "found 'ffff', expected what does not match f+"),
        ({"not_matches": "f+"}, "0" * 600, "expected what does not match f+"),
        ({"at_most": 85}, "84.5 C", ""),
        ({"at_most": 85}, "86", "found '86', expected at most 85"),
        ({"at_least": 16}, "0x10", ""),
        ({"at_least": 1, "at_most": 2}, "0", "found '0', expected at least 1"),
        ({"at_least": 1}, "", "found '', expected a number"),
        ({"at_least": 1}, "many", "found 'many', expected a number"),
        ({"at_least": 1}, "nan", "found 'nan', expected at least 1"),
        ({"equals": "x", "at_most": 1}, "y", "found 'y', expected 'x'"),
    ],
)
def test_file(host: Path, expectation: dict[str, object], content: str, reason: str) -> None:
    put(host / "run/d0", content)
    found = outcome(host, {"file": {"path": "/run/{{ device.name }}", **expectation}})
    assert found.removeprefix("/run/d0: ") == reason or (len(content) > 500 and found.endswith(reason))


def test_a_file_that_cannot_be_read(host: Path) -> None:
    probe = {"file": {"path": "/run/d0", "equals": "x"}}
    assert outcome(host, probe) == "/run/d0 is not there"
    (host / "run/d0").mkdir(parents=True)
    assert outcome(host, probe) == "/run/d0: Is a directory"
    (host / "run/d0").rmdir()
    (host / "run/d0").symlink_to("d0")
    assert outcome(host, probe) == "/run/d0: Too many levels of symbolic links"
    (host / "run/d0").unlink()
    (host / "run/d0").write_bytes(b"\xff\xfe")
    assert outcome(host, probe) == "/run/d0: found '\ufffd\ufffd', expected 'x'"


def test_carrier(host: Path) -> None:
    probe = {"carrier": "{{ device.attrs.interface }}"}
    assert outcome(host, probe) == ""  # moved into a pod
    carrier = put(host / "sys/class/net/eth7/carrier", "1\n")
    assert outcome(host, probe) == ""
    carrier.write_text("0\n")
    assert outcome(host, probe) == "eth7 has no carrier"
    carrier.unlink()
    # What the kernel does of an interface that is down (EINVAL), as near as a file system comes to it.
    carrier.mkdir()
    assert outcome(host, probe) == "eth7 is down"
    assert outcome(host, {"carrier": "{{ device.attrs.empty }}"}) == ""


def test_exec(host: Path, tmp_path: Path) -> None:
    program = tmp_path / "probe"
    program.write_text('#!/bin/sh\necho out\n[ -z "$2" ] || echo "$2" >&2\nexit $1\n')
    program.chmod(0o755)
    assert outcome(host, {"exec": {"command": [str(program), "0"]}}) == ""
    assert outcome(host, {"exec": {"command": [str(program), "3"]}}) == f"{program}: status 3: out"
    assert outcome(host, {"exec": {"command": [str(program), "1", "{{ device.id }} is hot"]}}) == (
        f"{program}: status 1: d0 is hot"
    )
    assert outcome(host, {"exec": {"command": ["/no/such"]}}) == "/no/such: No such file or directory"
    slow = {"exec": {"command": ["/bin/sleep", "100"]}, "timeout": "100ms", "interval": "1s"}
    assert outcome(host, slow) == "/bin/sleep: no end within 0.1 s"


@pytest.mark.parametrize(
    ("answered", "accepted", "reason"),
    [(204, None, ""), (503, None, "status 503"), (302, None, "status 302"), (302, [302], "")],
)
async def test_http(host: Path, answered: int, accepted: list[int] | None, reason: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=answered, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_get("/health", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/health"))
        probe = {"url": url} if accepted is None else {"url": url, "status": accepted}
        question = question_of(host, {"http": probe, "interval": "30s", "timeout": "20s"})
        assert await get(question) == (f"{url}: {reason}" if reason else "")


@pytest.mark.parametrize(
    ("listens", "reason"), [(True, "no answer within 0.2 s"), (False, "Cannot connect to host")]
)
async def test_an_http_probe_without_an_answer(host: Path, listens: bool, reason: str) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if listens:
            deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        timeout = "200ms" if listens else "20s"
        question = question_of(host, {"http": {"url": url}, "interval": "30s", "timeout": timeout})
        assert (await get(question)).startswith(f"{url}: {reason}")


def test_a_template_that_fails_fails_the_probe(host: Path) -> None:
    for path, reason in (
        ("{{ device.attrs.empty }}", "'{{ device.attrs.empty }}' is empty: nothing was found for it"),
        ("{{ device.name }}", "expected an absolute path"),
        ("/{{ device.name.split('-')[3] }}", "list object has no element 3"),
    ):
        question = question_of(host, {"exists": path})
        assert question.ask is not None
        assert question.ask() == f"health[0].exists: {reason}"


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ({"file": {"path": "{{ device.attrs.empty }}", "equals": "x"}}, "file"),
        ({"exec": {"command": ["{{ device.attrs.empty }}", "x"]}}, "exec"),
        ({"http": {"url": "{{ device.attrs.empty }}"}}, "http"),
    ],
)
def test_an_empty_path_or_url_says_so(host: Path, written: object, place: str) -> None:
    reason = "'{{ device.attrs.empty }}' is empty: nothing was found for it"
    assert outcome(host, written) == f"health[0].{place}: {reason}"


def test_probes_without_events_have_an_interval(host: Path) -> None:
    def when(*written: object) -> tuple[float | None, bool]:
        question = question_of(host, *written)
        return question.interval, question.with_scans

    assert when({"exists": "/run/x"}) == (None, True)
    assert when({"file": {"path": "/run/x", "equals": "y"}}) == (None, True)
    assert when({"exists": "/sys/x"}) == (WITHOUT_EVENTS, True)
    assert when({"file": {"path": "/proc/x", "equals": "y"}}) == (WITHOUT_EVENTS, True)
    assert when({"carrier": "eth0"}) == (WITHOUT_EVENTS, True)
    assert when({"exec": {"command": ["/x"]}}) == (COSTLY, False)
    assert when({"http": {"url": "http://x/"}}) == (COSTLY, False)
    assert when({"exists": "/sys/x", "interval": "2s"}) == (2.0, False)


def test_allocate_runs_cheap_probes_again() -> None:
    asks = [
        asked_at_allocate(probe)
        for probe in probes(
            {"exists": "/a"},
            {"exists": "/b", "failures": 2},
            {"exists": "/c", "interval": "1m"},
            {"file": {"path": "/d", "equals": "x"}},
            {"exec": {"command": ["/e"]}},
            {"carrier": "f"},
        )
    ]
    assert asks == [True, False, False, True, False, False]
