"""devicelens explain: the command, against an exporter and against a kubelet."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import Result
from msgspec.structs import replace

from exporter.cli.explain import parse_device
from exporter.mapping.dra import ClaimName, PublishedDevice, PublishedName, Taint
from exporter.mapping.model import AdvertisedDevice, ClaimHolding, Holder
from exporter.mapping.state import Failure, State
from harness import scene
from harness.application import application
from harness.commands import against, devicelens
from harness.scene import GPU, START
from simulator import Replay, SimulatedKubelet

SNAPSHOT = scene.snapshot(
    scene.device("same", resource="acme.example/x"),
    scene.device("GPU-0::0", Holder("ml", "llama-0", "trainer", "uid-1"), parent="GPU-0", numa=(1,)),
    scene.device("GPU-0::1", parent="GPU-0", numa=(1,)),
    scene.device("bad\x1b[2J", ok=False),
    scene.device("same", resource="other.example/x"),
)
TOLD = AdvertisedDevice(
    healthy=False,
    reason="dust\x07",
    since=START - 60,
    attributes=(("model", "A\x1b100"),),
    last_allocated=START - 9,
)
STATE = scene.state(
    SNAPSHOT,
    at=START,
    since=START - 600,
    advertised=scene.reported({"bad\x1b[2J": TOLD}, source="unix:/p", received_at=START),
)


async def explained(state: State, *arguments: str) -> Result:
    return await against(application(state, START + 2), "explain", *arguments)


async def test_sentences_come_first_and_facts_after() -> None:
    result = await explained(STATE, "GPU-0::0")
    assert (result.exit_code, result.stderr) == (0, "")
    words, _, facts = result.stdout.partition("\n\n")
    assert words.splitlines()[:2] == [
        "GPU-0::0: held by 1 pod.",
        f"GPU-0::0 of {GPU} is share 0 of GPU-0 (id rule replica).",
    ]
    assert facts.splitlines() == [
        "device       GPU-0::0",
        f"resource     {GPU}",
        "read as      replica 0 (rule replica)",
        "parent       GPU-0",
        "allocatable  yes",
        "holder       ml/llama-0 trainer, since 2026-10-28T22:31:03.250Z",
        "  uid        uid-1",
        "numa         1 (from the kubelet)",
        "sibling      GPU-0::1 (no holder)",
        "mapping      fresh, 2 s old, of worker-3",
    ]


def _through(pod: str, claim: str, requested_as: str = "", *, admin: bool = False) -> ClaimHolding:
    return ClaimHolding(Holder("ml", pod, "main"), "ml", claim, "", "r", requested_as, admin=admin)


CLAIMED = scene.snapshot(
    scene.claimed(
        "gpu-0",
        _through("llama-0", "wish", "nvidia.com/gpu"),
        _through("watcher", "all", "big.example.com", admin=True),
        published=PublishedDevice(
            PublishedName("gpu.example.com", "pool-a", "gpu-0"),
            uuid="GPU-7c1f",
            attributes=(("mo\x1bdel", "LATEST"),),
            capacity=(("memory", "80Gi"),),
            taints=(Taint("x.example/xid", "79", "NoExecute"),),
        ),
        cdi=("k8s.example.com/gpu=seven",),
        allocatable=False,
    ),
    published=["gpu.example.com"],
)


@pytest.mark.parametrize(
    "name", ["pool-a/gpu-0", "gpu.example.com=gpu-0", "=k8s.example.com/gpu=seven", "GPU-7c1f", "gpu=gpu-0"]
)
async def test_a_claimed_device_is_explained_by_any_of_its_names(name: str) -> None:
    result = await explained(scene.state(CLAIMED, at=START, since=START - 600), name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.partition("\n\n")[2].splitlines() == [
        "device       pool-a/gpu-0",
        "resource     gpu.example.com",
        "read as      whole (rule whole)",
        "holder       ml/llama-0 main, since 2026-10-28T22:31:03.250Z",
        "  claim      ml/wish",
        "  asked for  nvidia.com/gpu",
        "driver       gpu.example.com",
        "pool         pool-a",
        "admin        ml/watcher main, by ml/all",
        "taint        x.example/xid=79:NoExecute",
        "attribute    mo\\x1bdel=LATEST",
        "capacity     memory=80Gi",
        "health       tainted: taint x.example/xid=79:NoExecute",
        "mapping      fresh, 2 s old, of worker-3",
    ]


async def test_a_reserved_device_is_explained() -> None:
    spare = scene.claimed("gpu-1", reserved=[ClaimName("ml", "wi\x1bsh")])
    snapshot = scene.snapshot(spare, published=["gpu.example.com"])
    result = await explained(scene.state(snapshot, at=START), "gpu-1")
    assert "reserved for the claim ml/wi\\x1bsh, which no listed container uses" in result.stdout.lower()


async def test_hostile_texts_are_spelled_out() -> None:
    result = await explained(STATE, "bad\\x1b[2J")
    assert result.exit_code == 0
    assert "its plugin reports it unhealthy: dust\\x07." in result.stdout
    assert "attribute    model=A\\x1b100" in result.stdout
    assert "plugin       Unhealthy: dust\\x07, by unix:/p" in result.stdout
    assert not {"\x1b", "\x07"} & set(result.stdout)
    as_json = await explained(STATE, "bad\x1b[2J", "-o", "json")
    assert as_json.stdout.isascii()
    assert json.loads(as_json.stdout)["device"] == "bad\x1b[2J"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (
            ("GPU-9::0",),
            3,
            "devicelens: no device 'GPU-9::0' is known on this node; its id names the parent GPU-9, ",
        ),
        (
            ("tpu/x=a",),
            3,
            "devicelens: no resource 'tpu/x' on this node: there are acme.example/x, nvidia.com/gpu, ",
        ),
        (
            ("same",),
            2,
            "'same' is an id in several resources: say which: acme.example/x=same, other.example/x=same",
        ),
        (("x" * 600,), 2, "expected at most 512 characters"),
    ],
)
async def test_what_goes_wrong_has_its_status_and_one_clear_line(
    arguments: tuple[str, ...], status: int, words: str
) -> None:
    result = await explained(STATE, *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in " ".join(result.stderr.replace("│", "").split())


async def test_a_resource_may_be_named_before_the_device() -> None:
    result = await explained(STATE, "acme.example/x=same", "-o", "json")
    assert json.loads(result.stdout)["elsewhere"] == ["other.example/x"]


async def test_a_resource_may_be_the_part_after_its_slash() -> None:
    assert json.loads((await explained(STATE, "gpu=0::1", "-o", "json")).stdout)["device"] == "GPU-0::1"
    result = await explained(STATE, "gpu=none")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no device 'none'" in result.stderr
    # Part of all that one device is divided into, and of nothing else: that device.
    divided = json.loads((await explained(STATE, "gpu=pu-0", "-o", "json")).stdout)
    assert (divided["device"], [part["device"] for part in divided["parts"]]) == (
        "GPU-0",
        ["GPU-0::0", "GPU-0::1"],
    )
    # With its sign before it, it is an id and nothing else.
    assert "no device 'gpu=0::1'" in (await explained(STATE, "=gpu=0::1")).stderr


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("GPU-0", ("", "GPU-0")),
        ("nvidia.com/gpu=GPU-0", ("nvidia.com/gpu", "GPU-0")),
        ("nvidia.com/gpu=a=b", ("nvidia.com/gpu", "a=b")),
        ("a=b", ("", "a=b")),
        ("=a=b", ("", "a=b")),
        ("nvidia0/gi1/vgpu=x", ("", "nvidia0/gi1/vgpu=x")),
        ("a=", ("", "a=")),
    ],
)
def test_resource_and_id_are_separated(text: str, parsed: tuple[str, str]) -> None:
    assert parse_device(text) == parsed


async def test_an_older_exporter_is_a_failed_query() -> None:
    older = web.Application()

    async def not_found(_: web.Request) -> web.Response:
        body = b'{"title":"Not Found","status":404,"detail":"nothing is at /api/v1/explain"}'
        return web.Response(status=404, body=body, content_type="application/problem+json")

    older.router.add_get("/api/v1/explain", not_found)
    result = await against(older, "explain", "GPU-0")
    assert result.exit_code == 1
    assert "404 Not Found: nothing is at /api/v1/explain" in result.stderr


async def test_an_old_or_missing_mapping_is_reported() -> None:
    failure = Failure("List", "UNSETTLED", "it does not list all pods yet", START + 1)
    result = await explained(replace(STATE, failure=failure), "GPU-0::1")
    assert result.exit_code == 0
    assert "devicelens: the mapping of worker-3 is ageing" in result.stderr
    assert (
        "The last good List names no holder; List has failed since, so a pod may hold it now" in result.stdout
    )
    none = await explained(State(), "GPU-0")
    assert (none.exit_code, none.stdout) == (1, "")


async def test_a_kubelet_is_queried(root: Path, recorded: Replay) -> None:
    source = ("--socket", str(root / "pod-resources" / "kubelet.sock"))
    async with SimulatedKubelet(root, replay=recorded):
        found = await devicelens("explain", *source, "foo=dev-10")
        assert (found.exit_code, "kube-system/guaranteed (container main" in found.stdout) == (0, True)
        unknown = await devicelens("explain", *source, "dev-99")
        assert (unknown.exit_code, unknown.stdout) == (3, "")
        assert "the most similar ids are dev-" in unknown.stderr
        several = await devicelens("explain", *source, "dev-")
        assert several.exit_code == 2
    gone = await devicelens("explain", *source, "dev-10")
    assert gone.exit_code == 1


async def test_before_the_first_answer_no_device_is_called_unknown() -> None:
    result = await explained(State(), "GPU-0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "503 Service Unavailable: no mapping yet; the kubelet has not answered" in result.stderr


async def test_a_physical_device_has_its_health_and_names_the_parts_that_differ() -> None:
    parts = (scene.device("G::0", parent="G", ok=False), scene.device("G::1", parent="G"))
    state = scene.state(scene.snapshot(*parts), at=START)
    result = await explained(state, "G")
    assert result.stdout.startswith("G: 1 of 2 parts unhealthy; divided into 2 devices, none held.\n")
    assert "health       1 of 2 parts unhealthy: G::0" in result.stdout
