"""devicelens who --prometheus: the mapping of a fleet, from series as exporters and scrapes make them."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from aiohttp import web
from click.testing import Result
from msgspec.json import encode
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from exporter.cli.prometheus import InstantSample, read_series
from exporter.mapping.dra import ClaimName, PublishedDevice, PublishedName, Taint
from exporter.mapping.holdings import HeldSince
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    Anomaly,
    ClaimHolding,
    Doubt,
    Holder,
    Snapshot,
)
from exporter.mapping.state import Moment, State
from exporter.metrics.families import MappingFamilies, stale_mapping
from exporter.metrics.series_limit import SeriesLimit
from exporter.views import documents
from harness import scene
from harness.commands import devicelens, serving
from harness.hostile import CORPUS
from harness.mappings import NOW, SNAPSHOT, STATE
from runtime.blocks import plain

OWN_POD = {"namespace": "obs", "pod": "exporter-x", "container": "exporter"}


def _clashing(labels: Mapping[str, str], target: Mapping[str, str], *, honour: bool) -> dict[str, str]:
    """Prometheus, scrape.mutateSampleLabels: whose label wins, and what becomes of the other."""
    found = {name: value for name, value in labels.items() if value}
    for name, value in target.items():
        if honour:
            # One that is there and empty is honoured, too, and is then no label at all.
            if name not in labels:
                found[name] = value
        else:
            if found.get(name):
                found[f"exported_{name}"] = found[name]
            found[name] = value
    return found


def scrape(
    state: State | None,
    node: str,
    now: float,
    *,
    honour: bool = True,
    target: Mapping[str, str] | None = None,
    up: float = 1.0,
    success: float | None = None,
) -> list[InstantSample]:
    """The samples of one exporter; `state` None: its mapping is stale."""
    if state is None:
        blocks = stale_mapping(node)
    else:
        blocks = MappingFamilies(node).of(state, SeriesLimit(100_000).plan(state))
    text = plain(blocks).decode()
    labels_of = {"instance": "10.0.0.1:10190", "job": "devicelens", **OWN_POD, **(target or {})}
    taken = success if success is not None else (state.taken_at if state is not None else None)
    own: list[tuple[str, dict[str, str], float]] = [
        (sample.name, dict(sample.labels), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    own.append(("devicelens_up", {}, up))
    if taken is not None:
        own.append(("devicelens_last_refresh_success_timestamp_seconds", {}, taken))
    return [
        InstantSample({"__name__": name, **_clashing(labels, labels_of, honour=honour)}, (now, repr(value)))
        for name, labels, value in own
    ]


class Fake:
    """Answers /api/v1/…, and records the queries."""

    def __init__(self) -> None:
        self.url = ""
        self.samples: list[InstantSample] = []
        self.extra: dict[str, object] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answer: web.Response | None = None

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query)))
        if self.answer is not None:
            return self.answer
        result = [{"metric": s.metric, "value": list(s.value)} for s in self.samples]
        data = {"resultType": "vector", "result": result}
        return web.json_response({"status": "success", "data": data} | self.extra)


@pytest.fixture
async def fake() -> AsyncGenerator[Fake]:
    fake = Fake()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", fake.handle)
    async with serving(app) as fake.url:
        yield fake


async def run(fake: Fake, *arguments: str, path: str = "") -> Result:
    return await devicelens("who", *arguments, "--prometheus", f"{fake.url}{path}")


async def nodes_of(fake: Fake, *arguments: str) -> list[Any]:
    result = await run(fake, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout)["nodes"])


async def test_the_fleet_is_a_table_with_its_nodes(fake: Fake) -> None:
    fake.samples = [
        *scrape(STATE, "worker-3", NOW, target={"cluster": "a"}),
        *scrape(STATE, "worker-3", NOW, honour=False, target={"cluster": "b"}),
    ]
    result = await run(fake, "gpu")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "CLUSTER  NODE      RESOURCE        DEVICE  STATE  NAMESPACE/POD  CONTAINER  FIRST SEEN",
        "a        worker-3  nvidia.com/gpu  GPU-0   held   ml/llama-0     trainer    22:31:03Z (10 min)",
        "a        worker-3  nvidia.com/gpu  GPU-1   free",
        "b        worker-3  nvidia.com/gpu  GPU-0   held   ml/llama-0     trainer    22:31:03Z (10 min)",
        "b        worker-3  nvidia.com/gpu  GPU-1   free",
        "",
        "4 devices: 2 held, 2 free",
    ]
    assert result.stderr == ""


async def test_one_cluster_needs_no_column_and_a_pod_s_cpus_are_shown(fake: Fake) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW, target={"cluster": "a"})
    result = await run(fake, "--pod", "ml/llama-0")
    assert [line.split()[:4] for line in result.stdout.splitlines()] == [
        ["NODE", "RESOURCE", "DEVICE", "STATE"],
        ["worker-3", "nvidia.com/gpu", "GPU-0", "held"],
        ["worker-3", "cpu", "2", "CPUs"],
        [],
        ["1", "device:", "1", "held;"],
    ]
    (node,) = await nodes_of(fake, "--pod", "ml/llama-0")
    assert (node["node"], node["labels"], node["freshness"]) == ("worker-3", {}, "fresh")
    (cpus,) = node["cpus"]
    assert (cpus["pod"], cpus["container"], cpus["count"], cpus["cpu_ids"]) == ("llama-0", "trainer", 2, None)


async def test_a_moment_is_queried_by_its_time(fake: Fake) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    result = await run(fake, "--at", "2026-10-28T22:41:03Z", path="/behind/a/path/")
    assert result.exit_code == 0, result.output
    await run(fake)
    (path, asked), (_, now) = fake.asked
    assert (path, asked["time"]) == ("/behind/a/path/api/v1/query", "1793227263.000")
    assert "time" not in now


async def test_warnings_about_nodes_are_reported(fake: Fake) -> None:
    labels = {"instance": "10.0.0.2:10190", "job": "devicelens"}
    fake.samples = [
        *scrape(STATE, "worker-1", NOW, up=0.0, success=NOW - 40, target={"instance": "10.0.0.1:10190"}),
        *scrape(None, "worker-2", NOW, up=0.0, success=NOW - 400, target=labels),
        *scrape(replace(STATE, snapshot=Snapshot()), "worker-3", NOW, up=0.0, target={"instance": "c"}),
    ]
    fake.extra = {"warnings": ["store 10.1.1.1 is not there\x1b[2J"], "infos": ["an info"]}
    result = await run(fake, "gpu")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "devicelens: 1 exporter could not query the kubelet yet (c): the holders are unknown",
        "devicelens: the mapping of worker-1 is ageing, 40 s old",
        "devicelens: the mapping of worker-2 is stale, 6 min old",
        "devicelens: Prometheus says: store 10.1.1.1 is not there\\x1b[2J",
        "devicelens: Prometheus says: an info",
    ]
    assert result.stdout.splitlines()[:2] == [
        "Warning: the mapping of worker-2 is stale: the holders are unknown",
        "Warning: an exporter could not query its kubelet yet: the holders are unknown",
    ]
    failed = await run(fake, "gpu", "--fail-if-stale")
    assert (failed.exit_code, failed.stdout) == (4, result.stdout)
    none = await run(fake, "--pod", "ml/gone", "--fail-if-stale", "--no-headers")
    assert (none.exit_code, none.stdout) == (4, "")
    fake.samples = scrape(STATE, "worker-1", NOW, up=0.0, success=NOW - 40)
    ageing = await run(fake, "--fail-if-stale")
    assert (ageing.exit_code, "Warning" in ageing.stdout) == (0, False)


async def test_a_fleet_is_filtered_by_state(fake: Fake) -> None:
    fake.samples = [
        *scrape(STATE, "worker-1", NOW, target={"instance": "a"}),
        *scrape(replace(STATE, snapshot=Snapshot()), "worker-2", NOW, target={"instance": "b"}),
    ]
    for arguments in (("--state", "free"), ("--state", "free", "--at", str(NOW))):
        result = await run(fake, *arguments)
        assert [line.split() for line in result.stdout.splitlines()[1:]] == [
            ["worker-1", "nvidia.com/gpu", "GPU-1", "free"],
            [],
            ["1", "device:", "1", "free"],
        ]
    none = await run(fake, "--state", "unhealthy")
    assert none.stderr == "devicelens: no unhealthy device on worker-1\n"


async def test_selectors_and_nodes_become_matchers(fake: Fake) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    result = await run(fake, "--selector", "{cluster='a\"b'}", "--node", "worker-3")
    assert result.exit_code == 0, result.output
    query = fake.asked[0][1]["query"]
    assert query.count("cluster='a\"b'") == 3
    # A scrape without honor_labels has renamed the label.
    assert query.count(',node="worker-3"') == query.count('exported_node="worker-3"') == 1
    fake.samples = scrape(STATE, "worker-3", NOW)[-2:]
    missing = await run(fake, "--node", "worker-4")
    assert missing.exit_code == 3
    assert missing.stderr.endswith("has no devicelens series for node worker-4\n")


async def test_an_answer_without_series_is_reported(fake: Fake) -> None:
    result = await run(fake)
    assert result.exit_code == 1
    assert "has no devicelens series: does it scrape the exporters?" in result.stderr
    chosen = await run(fake, "--selector", 'cluster="x"')
    assert chosen.exit_code == 3
    assert 'has no devicelens series for {cluster="x"}' in chosen.stderr


def error(status: int, kind: str, words: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": kind, "error": words}, status=status)


def text(status: int, body: str, media: str = "text/plain") -> web.Response:
    return web.Response(status=status, text=body, content_type=media)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(400, "bad_data", "parse error\x1b[2J"), "bad_data: parse error\\x1b[2J"),
        (error(422, "execution", "too many samples"), "ask for less: --node, --selector"),
        (error(503, "timeout", "query timed out in expression evaluation"), "; --timeout is 30 s"),
        (error(200, "execution", "odd"), "execution: odd"),
        (text(404, "404 page not found\n"), "404 Not Found: this is not a Prometheus, or there is another"),
        (
            text(404, '{"detail":"x"}', "application/problem+json"),
            "this is a devicelens process and not a Prometheus: use --url",
        ),
        (
            text(200, '{"status":"success","data":{"resultType":"scalar"}}', "application/json"),
            "this is not a Prometheus, or not of this version; /api/v1/query is application/json",
        ),
        (text(500, "no org id\x1b[2J\n"), "500 Internal Server Error"),
    ],
)
async def test_bad_answers_are_reported_in_one_line(fake: Fake, answer: web.Response, words: str) -> None:
    fake.answer = answer
    result = await run(fake)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"devicelens: {fake.url}: ")
    assert words in line


async def test_the_command_line_goes_before_the_environment(fake: Fake) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    other = {"DEVICELENS_URL": "http://127.0.0.1:1", "DEVICELENS_NODE": "worker-3"}
    result = await devicelens("who", "--prometheus", fake.url, **other)
    assert result.exit_code == 0, result.output
    assert (await devicelens("who", DEVICELENS_PROMETHEUS=fake.url)).stdout == result.stdout


@pytest.mark.parametrize("honour", [True, False])
@pytest.mark.parametrize("target", [{}, {"node": "other-name", "cluster": "a", "service": "x"}])
async def test_a_fleet_s_node_is_as_its_exporter_has_it(
    fake: Fake, snapshot: Snapshot, target: dict[str, str], *, honour: bool
) -> None:
    devices = scene.snapshot(*snapshot.devices)
    state = replace(
        scene.state(devices, at=NOW, since=lambda _: HeldSince(NOW - 600, exact=False)),
        snapshot=replace(snapshot, containers=()),
        pods={("ml", "llama-0"): PodIdentity("ml", "llama-0", "uid-1", "Running", Workload("Job", "llama"))},
        anomalies=(
            Anomaly("plugin_gone", "x.example/y"),
            Anomaly("unhealthy_held", "nvidia.com/gpu", "GPU-2", Holder("batch", "render-1", "blender")),
        ),
    )
    fake.samples = scrape(state, "worker-3", NOW, honour=honour, target=target)
    (node,) = await nodes_of(fake)
    moment = Moment(state, "worker-3", NOW, 60.0)
    expected = json.loads(encode(documents.devices(moment)))
    del expected["generation"], expected["next"]
    (claimed,) = [one["claimed"] for one in expected["devices"] if one["claimed"] is not None]
    claimed["cdi_devices"] = []
    assert {name: node[name] for name in expected} == expected
    (claim,) = json.loads(encode(documents.claims(moment).claims))
    assert node["claims"] == [claim | {"cdi_devices": []}]
    assert [(a["kind"], a["device"], a["holder"] and a["holder"]["pod"]) for a in node["anomalies"]] == [
        ("plugin_gone", None, None),
        ("unhealthy_held", "GPU-2", "render-1"),
    ]


def _through(pod: str, requested_as: str = "", share: str = "", *, admin: bool = False) -> ClaimHolding:
    holder = Holder("ml", pod, "main")
    return ClaimHolding(holder, "ml", f"wish-{pod}", share, "r", requested_as, admin=admin)


def _published(name: str, **facts: Any) -> PublishedDevice:
    return PublishedDevice(PublishedName("gpu.example.com", "pool-a", name), **facts)


TAINT = Taint("x.example/xid", "79", "NoSchedule")
PART = "example.com/part"
CLAIMED = scene.snapshot(
    scene.claimed(
        "gpu-0",
        _through("one", "nvidia.com/gpu", "s-1"),
        published=_published("gpu-0", uuid="GPU-7c1f"),
    ),
    # Administration is not holding.
    scene.claimed("gpu-1", _through("watcher", "big.example.com", admin=True)),
    scene.claimed("gpu-2", _through("two"), resource=PART),
    scene.claimed("gpu-3", published=_published("gpu-3", taints=(TAINT,)), allocatable=False),
    published=["gpu.example.com", PART],
)


@pytest.mark.parametrize(
    ("arguments", "devices"),
    [
        (("nvidia.com/gpu",), ["pool-a/gpu-0"]),
        (("gpu.example.com",), ["pool-a/gpu-2", "pool-a/gpu-0", "pool-a/gpu-1", "pool-a/gpu-3"]),
        (("part",), ["pool-a/gpu-2"]),
        (("=GPU-7c1f",), ["pool-a/gpu-0"]),
        (("--state", "free"), ["pool-a/gpu-1"]),
        (("--pod", "ml/two"), ["pool-a/gpu-2"]),
    ],
)
async def test_claimed_devices_of_a_fleet_are_found(
    fake: Fake, arguments: tuple[str, ...], devices: list[str]
) -> None:
    fake.samples = scrape(scene.state(CLAIMED, at=NOW), "worker-3", NOW)
    (node,) = await nodes_of(fake, *arguments)
    assert [one["device"] for one in node["devices"]] == devices
    assert {(one["pool"], one["device"]) for one in node["claims"]} == {
        tuple(name.split("/")) for name in devices if name != "pool-a/gpu-3"
    }


async def test_the_wide_table_of_a_fleet_has_claims_and_what_pods_asked_for(fake: Fake) -> None:
    fake.samples = scrape(scene.state(CLAIMED, at=NOW), "worker-3", NOW)
    result = await run(fake, "-o", "wide", "=gpu-0")
    assert result.stdout.splitlines()[1].split()[-2:] == ["(s-1)", "nvidia.com/gpu"]
    assert " ml/wish-one (s-1) " in result.stdout


def _taken(snapshot: Snapshot) -> dict[str, bool | None]:
    state = scene.state(snapshot, at=NOW)
    ((node, *_),) = read_series(scrape(state, "n", NOW))[0]
    exact = {one.device: one.free for one in documents.devices(Moment(state, "n", NOW, 60.0)).devices}
    found = {one.device: one.free for one in node.devices}
    assert all(free in {None, exact[name]} for name, free in found.items())
    return found


@pytest.mark.parametrize(
    ("others", "free"),
    [
        ([], {"pool-a/0": True, "pool-a/1": True}),
        # Which of them is free no series says.
        (["alternative"], {"pool-a/0": None, "pool-a/1": None, "pool-a/2": None}),
        (["held"], {"pool-a/0": True, "pool-a/1": True, "pool-a/2": False}),
        (["tainted"], {"pool-a/0": True, "pool-a/1": True, "pool-a/2": False}),
    ],
)
def test_what_is_free_follows_from_the_count_of_free_devices(
    others: list[str], free: dict[str, bool | None]
) -> None:
    devices = [scene.claimed("0"), scene.claimed("1")]
    for name in others:
        through = [_through("one")] if name == "held" else []
        taints = (TAINT,) if name == "tainted" else ()
        alternative, facts = name == "alternative", _published("2", taints=taints)
        changes: dict[str, Any] = {"allocatable": not taints, "alternative": alternative}
        devices.append(scene.claimed("2", *through, published=facts, **changes))
    assert _taken(scene.snapshot(*devices, published=["gpu.example.com"])) == free


def test_where_only_held_devices_are_known_nothing_is_free() -> None:
    assert _taken(scene.snapshot(scene.claimed("0", _through("one")))) == {"pool-a/0": None}
    assert _taken(scene.snapshot(scene.device("0"), complete=False))["0"] is None


def test_a_reserved_device_is_not_free() -> None:
    reserved = scene.claimed("0", reserved=[ClaimName("ml", "wish")])
    assert _taken(scene.snapshot(reserved, published=["gpu.example.com"])) == {"pool-a/0": False}


async def test_unconfirmed_holders_of_a_fleet_are_marked(fake: Fake) -> None:
    doubts = {("ml", "llama-0"): Doubt("missing", NOW - 5, NOW + 5)}
    state = scene.state(replace(SNAPSHOT, unconfirmed=doubts), at=NOW)
    fake.samples = scrape(state, "worker-3", NOW)
    assert "  held, unconfirmed  ml/llama-0" in (await run(fake)).stdout


@pytest.mark.parametrize("name", CORPUS.values(), ids=CORPUS.keys())
@pytest.mark.parametrize("honour", [True, False])
def test_any_names_come_back(name: str, *, honour: bool) -> None:
    device = scene.device(
        name, Holder(name, name, name, "uid"), resource=name, parent=name, numa=(1, 3), ok=False
    )
    state = scene.state(
        scene.snapshot(device), at=NOW, since=lambda _: HeldSince(NOW - 5, exact=False), anomalies=()
    )
    ((node, *_),) = read_series(scrape(state, "n", NOW, honour=honour))[0]
    assert node.devices == documents.devices(Moment(state, "n", NOW, 60.0)).devices


@pytest.mark.parametrize(
    ("state", "scraped", "freshness"),
    [
        (None, {"up": 0.0, "success": NOW - 90}, "stale"),
        (STATE, {"success": NOW - 301}, "stale"),
        (STATE, {"up": 0.0}, "ageing"),
        (STATE, {"success": -1.0}, "unknown"),
        (STATE, {}, "fresh"),
    ],
)
async def test_freshness_follows_the_exporter_s_refreshes(
    fake: Fake, state: State | None, scraped: dict[str, Any], freshness: str
) -> None:
    fake.samples = scrape(state, "worker-3", NOW, **scraped)
    (node,) = await nodes_of(fake)
    assert node["freshness"] == freshness
    assert bool(node["devices"]) is (state is not None)


async def test_a_node_of_two_targets_is_shown_once_as_refreshed_last(fake: Fake) -> None:
    older = replace(STATE, taken_at=NOW - 20, snapshot=replace(SNAPSHOT, devices=SNAPSHOT.devices[:1]))
    fake.samples = [
        *scrape(older, "worker-3", NOW, target={"job": "one"}),
        *scrape(STATE, "worker-3", NOW, honour=False, target={"job": "two"}),
    ]
    result = await run(fake)
    assert len(result.stdout.splitlines()) == 5
    assert result.stderr == (
        "devicelens: 2 targets have different devices or holders of worker-3: shown is the one refreshed "
        "last (instance 10.0.0.1:10190, job two); nodes of one name need a label for their cluster\n"
    )
    fake.samples = [
        *scrape(STATE, "worker-3", NOW, target={"job": "one"}),
        *scrape(STATE, "worker-3", NOW, target={"prometheus_replica": "b"}),
    ]
    same = await run(fake)
    assert (same.stdout, same.stderr) == (result.stdout, "")


def test_malformed_series_are_no_error() -> None:
    base = {"node": "n", "resource": "r", "device": "d"}
    samples = [
        InstantSample({"__name__": name, **labels}, (NOW, value))
        for name, labels, value in (
            ("devicelens_device_info", {**base, "numa_node": "x,1,,\u00b2,-1"}, "NaN"),
            ("devicelens_device_held_since_timestamp_seconds", {**base, "pod": "p"}, "+Inf"),
            ("devicelens_last_refresh_success_timestamp_seconds", {}, "soon"),
            ("devicelens_series_dropped", {}, "NaN"),
            ("devicelens_device_held_since_timestamp_seconds", {**base, "pod": "q"}, "1e300"),
            ("devicelens_container_exclusive_cpus", {"node": "n"}, "+Inf"),
            ("up", {"instance": "x"}, "1"),
        )
    ]
    nodes, _ = read_series([*samples, InstantSample({}, (NOW, "1"))])
    (device,) = next(n.mapping for n in nodes if n.mapping.node == "n").devices
    assert (device.numa_nodes, device.holders) == ((1,), ())


@pytest.mark.parametrize(
    ("selector", "matchers"),
    [
        ('{cluster="a"}', 'cluster="a"'),
        (' { a = "1" , b!="2",c=~"x.*",d!~"y|z", } ', 'a = "1" , b!="2",c=~"x.*",d!~"y|z"'),
        (r'a="say \"hi\" \\"', r'a="say \"hi\" \\"'),
        ("a='}'", "a='}'"),
    ],
)
async def test_matchers_are_passed_on(fake: Fake, selector: str, matchers: str) -> None:
    fake.samples = scrape(STATE, "worker-3", NOW)
    assert (await run(fake, "--selector", selector)).exit_code == 0
    assert all(f",{matchers}}}" in query["query"] for _, query in fake.asked)
