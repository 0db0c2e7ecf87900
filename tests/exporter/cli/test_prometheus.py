"""who, history and explain against servers that answer as Prometheus does, and as it should not."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from devicelens import main
from exporter.cli.prometheus.answers import Sample
from exporter.mapping.holdings import HeldSince, holdings
from exporter.mapping.model import Container, Device, DeviceKey, Holder, Snapshot
from exporter.mapping.state import State

NOW = 1_793_227_263.25  # 2026-10-28T22:41:03.25Z
TRAINER = Holder("ml", "llama-0", "trainer")
SNAPSHOT = Snapshot(
    (
        Device(DeviceKey("nvidia.com/gpu", "GPU-0"), holders=(TRAINER,)),
        Device(DeviceKey("nvidia.com/gpu", "GPU-1")),
    ),
    containers=(Container(TRAINER, {"nvidia.com/gpu": 1}, cpu_ids=(2, 3)),),
)
STATE = State(
    1, SNAPSHOT, NOW - 2, NOW - 2, {holding: HeldSince(NOW - 600) for holding in holdings(SNAPSHOT)}
)
Scrape = Callable[..., list[Sample]]


class Fake:
    """Answers /api/v1/…; keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.samples: list[Sample] = []
        self.before: list[dict[str, str]] = []
        self.extra: dict[str, object] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        form = dict(await request.post()) if request.method == "POST" else dict(request.query)
        query = {name: str(value) for name, value in form.items()}
        self.asked.append((request.method, request.path, query))
        if self.answer is not None:
            return await self.answer(request)
        if query.get("query", "").startswith("last_over_time"):
            result: list[object] = [{"metric": metric, "value": [NOW, "1"]} for metric in self.before]
        else:
            result = [{"metric": s.metric, "value": list(s.value)} for s in self.samples]
        data = {"resultType": "vector", "result": result}
        return web.json_response({"status": "success", "data": data} | self.extra)


@pytest.fixture
async def fake() -> AsyncGenerator[Fake]:
    fake = Fake()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", fake.handle)
    async with TestServer(app) as server:
        fake.url = str(server.make_url("/")).rstrip("/")
        yield fake


async def run(fake: Fake, command: str, *arguments: str, path: str = "") -> Result:
    url = f"{fake.url}{path}"
    runner = CliRunner(env={"DEVICELENS_URL": None})
    return await asyncio.to_thread(runner.invoke, main, [command, *arguments, "--prometheus", url])


def cells(result: Result) -> list[list[str]]:
    return [line.split("  ") for line in result.stdout.splitlines()]


async def test_the_fleet_is_a_table_with_its_nodes(fake: Fake, scrape: Scrape) -> None:
    fake.samples = [
        *scrape(STATE, "worker-3", NOW, target={"cluster": "a"}),
        *scrape(STATE, "worker-3", NOW, honour=False, target={"cluster": "b"}),
    ]
    result = await run(fake, "who", "gpu")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "CLUSTER  NODE      RESOURCE        DEVICE  STATE  NAMESPACE/POD  CONTAINER  FIRST SEEN",
        "a        worker-3  nvidia.com/gpu  GPU-0   held   ml/llama-0     trainer    22:31:03Z (10 min)",
        "a        worker-3  nvidia.com/gpu  GPU-1   free",
        "b        worker-3  nvidia.com/gpu  GPU-0   held   ml/llama-0     trainer    22:31:03Z (10 min)",
        "b        worker-3  nvidia.com/gpu  GPU-1   free",
    ]
    assert result.stderr == ""


async def test_one_cluster_needs_no_column_and_a_pod_s_cpus_are_told(fake: Fake, scrape: Scrape) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW, target={"cluster": "a"})
    result = await run(fake, "who", "--pod", "ml/llama-0")
    assert [line.split()[:4] for line in result.stdout.splitlines()] == [
        ["NODE", "RESOURCE", "DEVICE", "STATE"],
        ["worker-3", "nvidia.com/gpu", "GPU-0", "held"],
        ["worker-3", "cpu", "2", "of"],
    ]
    document = json.loads((await run(fake, "who", "--pod", "ml/llama-0", "-o", "json")).stdout)
    (node,) = document["nodes"]
    assert (node["node"], node["labels"], node["freshness"]) == ("worker-3", {}, "fresh")
    assert node["cpus"][0] | {"pod_uid": None} == {
        "namespace": "ml",
        "pod": "llama-0",
        "container": "trainer",
        "pod_uid": None,
        "count": 2,
        "cpu_ids": None,
        "numa_nodes": [],
    }


async def test_a_moment_is_asked_for_by_its_time(fake: Fake, scrape: Scrape) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    result = await run(fake, "who", "--at", "2026-10-28T22:41:03Z")
    assert result.exit_code == 0, result.output
    assert fake.asked[0][2]["time"] == "1793227263.000"
    assert all("time" in query for _, _, query in fake.asked)
    await run(fake, "who")
    assert "time" not in fake.asked[2][2]


async def test_what_must_be_known_is_said(fake: Fake, scrape: Scrape) -> None:
    labels = {"instance": "10.0.0.2:10190", "job": "devicelens"}
    fake.samples = [
        *scrape(STATE, "worker-1", NOW, up=0.0, success=NOW - 40, target={"instance": "10.0.0.1:10190"}),
        *scrape(None, "worker-2", NOW, up=0.0, success=NOW - 400, target=labels),
        *scrape(replace(STATE, snapshot=Snapshot()), "worker-3", NOW, up=0.0, target={"instance": "c"}),
    ]
    fake.before = [
        {"__name__": "devicelens_resource_devices", "node": node, "resource": "nvidia.com/gpu"}
        for node in ("worker-1", "worker-9")
    ]
    fake.extra = {"warnings": ["store 10.1.1.1 is not there\x1b[2J"], "infos": ["an info"]}
    result = await run(fake, "who", "gpu")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "devicelens: 1 exporter could not ask the kubelet yet (c): who holds what there is not known",
        (
            "devicelens: nothing is told of worker-9, as there was within the hour before: the exporter is "
            "down there, or is not scraped"
        ),
        "devicelens: the mapping of worker-1 is 40 s old; its exporter cannot ask the kubelet",
        "devicelens: the mapping of worker-2 is stale, and is 6 min old: its exporter tells no holders",
        "devicelens: Prometheus says: store 10.1.1.1 is not there\\x1b[2J",
        "devicelens: Prometheus says: an info",
    ]


async def test_selectors_and_nodes_become_matchers(fake: Fake, scrape: Scrape) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    result = await run(fake, "who", "--selector", "{cluster='a\"b'}", "--node", "worker-3")
    assert result.exit_code == 0, result.output
    query = fake.asked[0][2]["query"]
    assert query.count('cluster="a\\"b"') == 2
    assert query.count('node="worker-3"') == 1
    missing = await run(fake, "who", "--node", "worker-4")
    assert missing.exit_code == 3
    assert missing.stderr.endswith("knows no node worker-4: there are worker-3\n")


async def test_a_node_whose_name_the_scrape_has_renamed_is_found(fake: Fake, scrape: Scrape) -> None:
    """By its own name it is not: `node` is the scrape's there."""

    async def by_name(request: web.Request) -> web.StreamResponse:
        matched = [] if 'node="worker-3"' in request.query["query"] else samples
        if request.query["query"].startswith("last_over_time"):
            matched = []
        result = [{"metric": s.metric, "value": list(s.value)} for s in matched]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    samples = scrape(STATE, "worker-3", NOW, honour=False, target={"node": "n3"})
    fake.answer = by_name
    result = await run(fake, "who", "--node", "worker-3")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "GPU-0" in result.stdout


async def test_nothing_of_devicelens_is_said(fake: Fake) -> None:
    result = await run(fake, "who")
    assert result.exit_code == 1
    assert "has nothing of devicelens: does it scrape the exporters?" in result.stderr
    chosen = await run(fake, "who", "--selector", 'cluster="x"')
    assert chosen.exit_code == 3
    assert 'has nothing of devicelens that {cluster="x"} keeps' in chosen.stderr


async def test_what_matches_nothing_is_3_and_a_short_name_of_two_is_2(fake: Fake, scrape: Scrape) -> None:
    other = replace(SNAPSHOT, devices=(Device(DeviceKey("amd.com/gpu", "0")), *SNAPSHOT.devices))
    fake.samples = scrape(replace(STATE, snapshot=other), "worker-3", NOW)
    assert (await run(fake, "who", "tpu")).exit_code == 3
    ambiguous = await run(fake, "who", "gpu")
    assert ambiguous.exit_code == 2
    assert "'gpu' may be amd.com/gpu and nvidia.com/gpu: say which" in ambiguous.stderr


async def test_one_device_is_explained_as_far_as_it_is_told(fake: Fake, scrape: Scrape) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    result = await run(fake, "explain", "GPU-0")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "ml/llama-0 (container trainer) holds it since before 2026-10-28 22:31:03 UTC" in text
    assert "What its plugin tells is not among the exporter's series: ask the exporter of worker-3" in text
    assert "--plugin.url" not in text
    assert (await run(fake, "explain", "TPU")).exit_code == 3
    ambiguous = await run(fake, "explain", "GPU")
    assert ambiguous.exit_code == 2
    assert "worker-3: 'GPU' is part of 2 ids" in ambiguous.stderr


async def test_a_device_of_two_nodes_needs_its_node(fake: Fake, scrape: Scrape) -> None:
    fake.samples = [
        *scrape(STATE, "worker-1", NOW, target={"instance": "a"}),
        *scrape(STATE, "worker-2", NOW, target={"instance": "b"}),
    ]
    result = await run(fake, "explain", "GPU-0")
    assert result.exit_code == 2
    assert "'GPU-0' is on worker-1 and worker-2: say which with --node, or --selector" in result.stderr
    chosen = await run(fake, "explain", "GPU-0", "--node", "worker-2")
    assert chosen.exit_code == 0
    assert "mapping      fresh, 2 s old, of worker-2" in chosen.stdout


def error(status: int, kind: str, words: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = {"status": "error", "errorType": kind, "error": words}
        return web.json_response(body, status=status)

    return answer


def text(
    status: int, body: str, media: str = "text/plain", **headers: str
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type=media, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(400, "bad_data", "parse error\x1b[2J"), "400 bad_data: parse error\\x1b[2J"),
        (error(422, "execution", "too many samples"), "ask for less: --node, --selector"),
        (error(503, "timeout", "query timed out in expression evaluation"), "; --timeout is 30 s"),
        (error(200, "execution", "odd"), "execution: odd"),
        (
            text(404, "404 page not found\n"),
            "404 Not Found: this is not a Prometheus, or there is another path",
        ),
        (
            text(404, '{"detail":"x"}', "application/problem+json"),
            "this is a devicelens process and not a Prometheus: ask an exporter with --url",
        ),
        (text(200, "<html>Sign in</html>", "text/html"), "not a Prometheus; /api/v1/query is text/html"),
        (text(200, "{}", "application/json"), "not a Prometheus; /api/v1/query is application/json"),
        (text(200, '{"status":"success","data":[]}', "application/json"), "is not as Prometheus has it"),
        (
            text(200, '{"status":"success","data":{"resultType":"scalar","result":[]}}', "application/json"),
            "it answered with something else than a ",
        ),
        (text(401, "Unauthorized"), "401 Unauthorized: it wants a name and a password"),
        (text(403, "no"), "403 Forbidden: who asks is known, and may not"),
        (
            text(502, "<html>", "text/html"),
            "502 Bad Gateway: something before it answers, and does not reach it",
        ),
        (text(500, "no org id\x1b[2J\n"), "500 Internal Server Error: no org id\\x1b[2J"),
        (text(302, "", Location="https://login/"), "302 Found: it sends on to https://login/"),
        (text(200, "not gzip", **{"Content-Encoding": "gzip"}), "its answer is not gzip, though it says so"),
    ],
)
async def test_bad_answers_are_said_in_one_line(
    fake: Fake, answer: Callable[[web.Request], Awaitable[web.StreamResponse]], words: str
) -> None:
    fake.answer = answer
    for command in (["who"], ["history"], ["explain", "GPU"]):
        result = await run(fake, *command)
        assert (result.exit_code, result.stdout) == (1, ""), result.output
        lines = [line for line in result.stderr.splitlines() if "of the day before" not in line]
        assert len(lines) == 1, lines
        assert lines[0].startswith(f"devicelens: {fake.url}: ")
        assert words in lines[0]


async def test_long_questions_go_by_post_and_by_get_where_that_is_not_let_through(
    fake: Fake, scrape: Scrape
) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    selector = 'cluster=~"' + "|".join(f"cluster-{i}" for i in range(200)) + '"'
    assert (await run(fake, "who", "--selector", selector)).exit_code == 0
    assert {method for method, _, _ in fake.asked} == {"POST"}

    async def no_post(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            raise web.HTTPMethodNotAllowed("POST", ["GET"])
        result = [{"metric": s.metric, "value": list(s.value)} for s in fake.samples]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})

    fake.asked.clear()
    fake.answer = no_post
    assert (await run(fake, "who", "--selector", selector)).exit_code == 0
    assert [method for method, _, _ in fake.asked] == ["POST", "GET", "GET"]


async def test_behind_a_path(fake: Fake, scrape: Scrape) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    assert (await run(fake, "who", path="/prometheus/")).exit_code == 0
    assert {path for _, path, _ in fake.asked} == {"/prometheus/api/v1/query"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--socket", "/x"), "--socket and --prometheus: expected one of them"),
        (("--url", "http://x"), "--url and --prometheus: expected one of them"),
        (("--selector", "{cluster=a}"), "expected matchers such as"),
        (("--at", "-1h", "--watch"), "--at and --watch: the past does not change"),
        (("--watch=0.1s",), "expected at least 0.2s"),
    ],
)
async def test_wrong_usage(fake: Fake, arguments: Iterable[str], words: str) -> None:
    result = await run(fake, "who", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("environment", "arguments", "words"),
    [
        ({"DEVICELENS_URL": "http://a", "DEVICELENS_PROMETHEUS": "http://b"}, (), "are both set: say which"),
        ({}, ("--node", "x"), "--node: expected --prometheus, for an exporter knows its own node alone"),
        ({}, ("--socket", "/x", "--selector", 'a="b"'), "for a kubelet knows its own node alone"),
        ({}, ("--socket", "/x", "--token-file", "/y"), "knows neither tokens nor TLS"),
        ({"DEVICELENS_PROMETHEUS": "b:9090"}, (), "--prometheus: found 'b:9090', expected http://HOST:PORT"),
    ],
)
def test_the_source_is_one(environment: dict[str, str], arguments: tuple[str, ...], words: str) -> None:
    cleared: dict[str, str | None] = {
        "DEVICELENS_URL": None,
        "DEVICELENS_PROMETHEUS": None,
        "DEVICELENS_SOCKET": None,
    }
    result = CliRunner(env={**cleared, **environment}).invoke(main, ["who", *arguments])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())


async def test_the_command_line_goes_before_the_environment(fake: Fake, scrape: Scrape) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    runner = CliRunner(env={"DEVICELENS_URL": "http://127.0.0.1:1", "DEVICELENS_NODE": "worker-3"})
    arguments = ["who", "--prometheus", fake.url]
    result = await asyncio.to_thread(runner.invoke, main, arguments)
    assert result.exit_code == 0, result.output
    by_variable = CliRunner(env={"DEVICELENS_URL": None, "DEVICELENS_PROMETHEUS": fake.url})
    assert (await asyncio.to_thread(by_variable.invoke, main, ["who"])).stdout == result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("history", "--step", "1h"), "expected 1s to 5m"),
        (("history", "--at", "-1h", "--from", "-2h"), "--at: expected either that, or --from and --to"),
        (
            ("history", "--from", "-30d", "--to", "2999-01-01T00:00:00Z", "--step", "0.5s"),
            "expected 1s to 5m",
        ),
    ],
)
async def test_wrong_usage_of_history(fake: Fake, arguments: tuple[str, ...], words: str) -> None:
    result = await run(fake, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_what_others_do_not_know_is_said() -> None:
    def refused(*arguments: str) -> str:
        result = CliRunner(env={"DEVICELENS_URL": None}).invoke(main, [*arguments])
        assert result.exit_code == 2
        return " ".join(result.stderr.split())

    assert "a kubelet does not know the past" in refused("history", "--socket", "/x")
    assert "a kubelet does not know the past" in refused("who", "--socket", "/x", "--at", "-1h")
    assert "--step: expected --prometheus" in refused("history", "--step", "15s")
    assert "--at: expected --prometheus" in refused("explain", "x", "--at", "-1h")
