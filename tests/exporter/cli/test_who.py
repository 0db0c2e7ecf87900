"""devicelens who, with servers that answer and servers that do not."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from msgspec import to_builtins
from msgspec.structs import replace

from exporter.mapping.model import Device, DeviceKey, Snapshot
from exporter.mapping.state import Failure, Moment, State
from exporter.views import documents
from harness import scene
from harness.application import application
from harness.commands import against, devicelens, serving
from harness.mappings import NOW, SNAPSHOT, STATE
from harness.raw_server import raw_server
from simulator import Faults, Replay, SimulatedKubelet


async def test_an_exporter_s_holders_are_a_table() -> None:
    result = await against(application(STATE, NOW), "who", "gpu")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "RESOURCE        DEVICE  STATE  NAMESPACE/POD  CONTAINER  SINCE",
        "nvidia.com/gpu  GPU-0   held   ml/llama-0     trainer    22:31:03Z (10 min)",
        "nvidia.com/gpu  GPU-1   free",
        "",
        "2 devices: 1 held, 1 free",
    ]
    assert result.stderr == ""


async def test_json_has_the_api_s_shape() -> None:
    app = application(STATE, NOW)
    async with serving(app) as url:
        result = await devicelens("who", "--url", url, "nvidia.com/gpu=GPU-0", "-o", "json")
        async with ClientSession() as session, session.get(f"{url}/api/v1/devices?device=GPU-0") as answer:
            told = json.loads(result.stdout)
            # Of claims and CPUs the API tells elsewhere.
            assert (told.pop("claims"), told.pop("cpus")) == ([], [])
            assert told | {"next": None} == await answer.json()


def _older(state: State) -> web.Application:
    """An exporter without claimed devices among the others, and without the members that came with them."""
    moment = Moment(state, "worker-3", NOW, 60.0)
    devices = to_builtins(documents.devices(moment))
    devices["devices"] = [one for one in devices["devices"] if one["claimed"] is None]
    for one in devices["devices"]:
        del one["free"], one["claimed"]
        for holder in one["holders"]:
            del holder["requested_as"]
    bodies = {
        "devices": devices,
        "claims": to_builtins(documents.claims(moment)),
        "pods": to_builtins(documents.pods(moment)),
    }

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(bodies[request.match_info["name"]])

    app = web.Application()
    app.router.add_get("/api/v1/{name}", answer)
    return app


async def test_an_older_exporter_s_devices_are_the_same_table() -> None:
    state = scene.state(scene.node(), at=NOW, since=NOW - 600)
    plugins = replace(state.snapshot, devices=[one for one in state.snapshot.devices if one.claimed is None])
    for arguments in ((), ("--state", "free,unhealthy"), ("gpu",), ("-o", "wide")):
        older = await against(_older(state), "who", *arguments)
        same = await against(
            application(scene.state(plugins, at=NOW, since=NOW - 600), NOW), "who", *arguments
        )
        assert (older.exit_code, older.stdout) == (0, same.stdout)
        assert older.stderr == "devicelens: this exporter is older: claimed devices are in -o json only\n"
    (claim,) = json.loads((await against(_older(state), "who", "-o", "json")).stdout)["claims"]
    assert claim["device"] == "gpu-0"
    no_plugins = scene.state(scene.snapshot(*[one for one in scene.node().devices if one.claimed]), at=NOW)
    none = await against(_older(no_plugins), "who")
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr.splitlines()[-1] == "devicelens: worker-3 has no devices"


async def test_an_exporter_on_a_unix_socket_and_by_environment(root: Path) -> None:
    runner = web.AppRunner(application(STATE, NOW), access_log=None)
    await runner.setup()
    await web.UnixSite(runner, root / "web.sock").start()
    try:
        by_flag = await devicelens("who", "--url", f"unix:{root}/web.sock")
        by_variable = await devicelens("who", DEVICELENS_URL=f"unix:{root}/web.sock")
    finally:
        await runner.cleanup()
    assert by_flag.exit_code == by_variable.exit_code == 0
    assert by_flag.stdout == by_variable.stdout
    assert "GPU-0" in by_flag.stdout


async def test_nothing_that_matches_is_3_and_a_node_without_devices_is_0() -> None:
    nothing = await against(application(STATE, NOW), "who", "--pod", "ml/other")
    assert nothing.exit_code == 3
    assert nothing.stderr == "devicelens: no device on worker-3 is held by ml/other\n"
    empty = await against(application(replace(STATE, snapshot=Snapshot()), NOW), "who")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == "devicelens: worker-3 has no devices\n"
    asked = await against(application(replace(STATE, snapshot=Snapshot()), NOW), "who", "gpu")
    assert asked.exit_code == 3


async def test_an_old_mapping_is_reported_on_standard_error() -> None:
    failure = Failure("List", "UNAVAILABLE", "no socket\x1b[2J", NOW + 5)
    result = await against(application(replace(STATE, failure=failure), NOW + 20), "who", "-o", "json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["devices"]) == 2
    assert result.stderr == (
        "devicelens: the mapping of worker-3 is ageing, 20 s old, of 2026-10-28T22:41:03.250Z; "
        "List has failed since 2026-10-28T22:41:08.250Z: UNAVAILABLE: no socket\\x1b[2J\n"
    )


OLD = replace(STATE, failure=Failure("List", "UNAVAILABLE", "no socket\x1b[2J", NOW + 5))
WARNING = (
    "the mapping of worker-3 is stale, 3600 s old, of 2026-10-28T22:41:03.250Z; List has failed since "
    "2026-10-28T22:41:08.250Z: UNAVAILABLE: no socket\\x1b[2J\n"
)


@pytest.mark.parametrize("command", [("who",), ("explain", "GPU-0"), ("anomalies",)])
async def test_a_stale_mapping_is_reported_on_standard_output_too(command: tuple[str, ...]) -> None:
    stale = application(OLD, NOW + 3600)
    shown = await against(stale, *command)
    assert (shown.exit_code, shown.stderr) == (0, f"devicelens: {WARNING}")
    assert shown.stdout.startswith(f"Warning: {WARNING}")
    failed = await against(application(OLD, NOW + 3600), *command, "--fail-if-stale")
    assert (failed.exit_code, failed.output) == (4, shown.output)
    document = await against(application(OLD, NOW + 3600), *command, "--fail-if-stale", "-o", "json")
    assert (document.exit_code, json.loads(document.stdout)["freshness"]) == (4, "stale")
    fresh = await against(application(STATE, NOW), *command, "--fail-if-stale")
    assert (fresh.exit_code, "Warning" in fresh.stdout) == (0, False)


async def test_a_stale_mapping_without_a_match_exits_with_4() -> None:
    arguments = ("who", "--pod", "ml/other", "--no-headers")
    failed = await against(application(OLD, NOW + 3600), *arguments, "--fail-if-stale")
    assert (failed.exit_code, failed.stdout) == (4, "")
    assert failed.stderr.endswith("devicelens: no device on worker-3 is held by ml/other\n")
    assert (await against(application(OLD, NOW + 3600), *arguments)).exit_code == 3


BROKEN = replace(
    STATE,
    snapshot=replace(
        SNAPSHOT,
        devices=(
            *SNAPSHOT.devices,
            Device(DeviceKey("nvidia.com/gpu", "GPU-2"), allocatable=False),
            replace(SNAPSHOT.devices[0], key=DeviceKey("nvidia.com/gpu", "GPU-3"), allocatable=False),
        ),
    ),
)


@pytest.mark.parametrize(
    ("states", "devices"),
    [
        (("free",), ["GPU-1"]),
        (("held",), ["GPU-0", "GPU-3"]),
        (("unhealthy",), ["GPU-2", "GPU-3"]),
        (("unhealthy", "free"), ["GPU-1", "GPU-2", "GPU-3"]),
    ],
)
async def test_devices_are_filtered_by_state(states: tuple[str, ...], devices: list[str]) -> None:
    once = await against(application(BROKEN, NOW), "who", "--state", ",".join(states), "--no-headers")
    assert [line.split()[1] for line in once.stdout.splitlines()] == devices
    repeated = [word for state in states for word in ("--state", state)]
    assert (await against(application(BROKEN, NOW), "who", *repeated, "--no-headers")).stdout == once.stdout
    document = await against(application(BROKEN, NOW), "who", *repeated, "-o", "json")
    assert [entry["device"] for entry in json.loads(document.stdout)["devices"]] == devices


async def test_a_state_that_no_device_has_is_3_and_one_that_is_unknown_is_1() -> None:
    none = await against(application(STATE, NOW), "who", "gpu", "--state", "unhealthy")
    assert (none.exit_code, none.stdout) == (3, "")
    assert none.stderr == "devicelens: no unhealthy device of gpu on worker-3\n"
    older = application(replace(STATE, snapshot=replace(SNAPSHOT, complete=False)), NOW)
    unknown = await against(older, "who", "--state", "free")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert unknown.stderr == (
        "devicelens: it is unknown which devices of worker-3 are free: the kubelet does not report "
        "allocatable devices\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--state", "busy"), "found 'busy', expected free, held, unhealthy"),
        (("--fail-if-stale", "--at", "-1h"), "--fail-if-stale and --at: history does not become stale"),
        (("--fail-if-stale", "--watch"), "--fail-if-stale and --watch: a watch runs until interrupted"),
    ],
)
async def test_flags_that_do_not_fit_are_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    result = await devicelens("who", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("whi", "who"), ("anomaly", "anomalies"), ("hist", "history"), ("kubelet restrat", "restart")],
)
async def test_an_unknown_command_names_the_one_that_is_meant(typed: str, meant: str) -> None:
    *_, last = words = typed.split()
    result = await devicelens(*words)
    assert result.exit_code == 2
    assert f"No such command '{last}'. Did you mean '{meant}'?" in result.stderr


async def test_an_exporter_without_a_mapping_is_a_failed_query() -> None:
    result = await against(application(State(), NOW), "who")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "503 Service Unavailable: no mapping yet; the kubelet has not answered" in result.stderr


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "it closed the connection without an answer: does it serve https?"),
        (b"SSH-2.0-OpenSSH_9\r\n", "it does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "its answer is cut off"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
            "this is not a devicelens exporter, or not of this version; /api/v1/devices is text/html",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "missing required field"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe", "this is not a devicelens exporter"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found: this is not a devicelens"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "401 No: it requires a name and a password"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "403 No: authenticated, but not authorized"),
        (b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n", "502 No: a proxy answers, and does not reach it"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            "its answer is not gzip, although its header says so",
        ),
        (
            b"HTTP/1.1 302 Found\r\nLocation: https://x/\x1b[2J\r\nContent-Length: 0\r\n\r\n",
            "302 Found: it redirects to https://x/\\x1b[2J",
        ),
        (b"HTTP/1.1 500 \x1b[2J\r\nContent-Length: 0\r\n\r\n", "500 \\x1b[2J"),
        (
            b"HTTP/1.1 503 No\r\nContent-Type: application/problem+json\r\nContent-Length: 4\r\n\r\nnull",
            "503 No",
        ),
    ],
)
async def test_other_servers_are_reported_in_one_line(answer: bytes, words: str) -> None:
    async with raw_server(answer) as url:
        result = await devicelens("who", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"devicelens: {url}: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "drip"),
    [
        (b"", 0.0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", 0.0),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, 0.02),
    ],
)
async def test_the_answer_may_not_take_longer_however_it_comes(answer: bytes, drip: float) -> None:
    async with raw_server(answer, close=False, drip=drip) as url:
        result = await devicelens("who", "--url", url, "--timeout", "300ms")
    assert (result.exit_code, result.stderr) == (1, f"devicelens: {url}: no answer within 0.3 s\n")


async def test_https_of_a_server_that_speaks_http() -> None:
    async with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        result = await devicelens("who", "--url", url.replace("http:", "https:"))
    assert result.exit_code == 1
    assert "does it serve https at all?" in result.stderr


async def test_closed_ports_and_missing_sockets_are_reported(root: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    refused = await devicelens("who", "--url", f"http://127.0.0.1:{port}")
    assert refused.exit_code == 1
    assert (
        refused.stderr == f"devicelens: http://127.0.0.1:{port}: connection refused: nothing listens there\n"
    )
    missing = await devicelens("who", "--url", f"unix:{root}/none.sock")
    assert missing.stderr == f"devicelens: unix:{root}/none.sock: there is no such socket\n"
    (root / "file").touch()
    assert "connection refused" in (await devicelens("who", "--url", f"unix:{root}/file")).stderr


async def test_a_short_name_of_two_resources_is_wrong_usage() -> None:
    other = Device(DeviceKey("amd.com/gpu", "0"))
    both = replace(STATE, snapshot=replace(SNAPSHOT, devices=(other, *SNAPSHOT.devices)))
    result = await against(application(both, NOW), "who", "gpu")
    assert result.exit_code == 2
    assert "'gpu' may be amd.com/gpu and nvidia.com/gpu: say which" in result.stderr


async def test_a_kubelet_is_queried(root: Path, recorded: Replay) -> None:
    path = str(root / "pod-resources" / "kubelet.sock")
    async with SimulatedKubelet(root, replay=recorded) as kubelet:
        table = await devicelens("who", "foo=dev-10", "--socket", path, DEVICELENS_URL="http://x.invalid")
        document = await devicelens("who", "--socket", path, "-o", "json")
        await kubelet.set_faults(Faults(hang=True))
        hung = await devicelens("who", "--socket", path, "--timeout", "300ms")
    assert table.exit_code == 0, table.stderr
    # Its socket is seconds old: for all that can be seen it has not heard from the API server yet.
    assert "may not list all pods yet" in table.stderr
    assert table.stdout.splitlines()[1].split() == [
        *("held.example/foo", "dev-10", "held", "kube-system/guaranteed", "main")
    ]
    read = json.loads(document.stdout)
    assert (read["freshness"], read["error"]) == ("fresh", None)
    (entry,) = (d for d in read["devices"] if d["device"] == "dev-10")
    (holder,) = entry["holders"]
    assert (holder["namespace"], holder["pod"], holder["container"]) == ("kube-system", "guaranteed", "main")
    assert (holder["pod_uid"], holder["since"], holder["workload"]) == (None, None, None)
    assert hung.exit_code == 1
    assert "no answer within 0.3 s" in hung.stderr


async def test_a_missing_kubelet_is_reported(root: Path) -> None:
    result = await devicelens("who", "--socket", f"{root}/kubelet.sock")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "devicelens: the kubelet cannot be queried: List: UNAVAILABLE: there is no socket "
        f"{root}/kubelet.sock: "
    )
    assert "the kubelet is not up" in result.stderr
    assert result.stderr.count(str(root)) == 1


async def test_a_query_imports_only_what_it_needs() -> None:
    code = (
        "import sys, devicelens\n"
        "heavy = {'grpc', 'aiohttp', 'rich.console', 'jinja2', 'google.protobuf', 'asyncio'}\n"
        "try: devicelens.main()\n"
        "except SystemExit: pass\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    async with serving(application(STATE, NOW)) as url:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code, "who", "--url", url],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "ml/llama-0" in done.stdout
