"""exporter.views.matching: what a filter keeps."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exporter.mapping
from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.dra import ClaimName, PublishedDevice, PublishedName, Taint
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    AdvertisedDevice,
    Anomaly,
    ClaimHolding,
    Device,
    Holder,
    Snapshot,
)
from exporter.mapping.state import State
from exporter.views.matching import ItemMatcher, states
from exporter.views.query import CLAIM_FILTERS, Filters, QueryError, StateFilter, parse_list
from exporter.views.schema import KINDS
from exporter.views.wording import spelled
from harness import scene
from harness.scene import GPU, device


def filters(text: str) -> Filters:
    """The filters of `name=value` pairs, separated by `&`."""
    pairs = dict(pair.split("=", 1) for pair in text.split("&")) if text else {}
    state = StateFilter(pairs.pop("state")) if "state" in pairs else None
    return Filters(**pairs, state=state)


def ids(snapshot: Snapshot, text: str) -> list[str]:
    return found(State(snapshot=snapshot), filters(text))


def found(state: State, kept: Filters) -> list[str]:
    return [one.device.key.device for one in ItemMatcher.of(state, kept).devices(state.devices)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("resource=nvidia.com/gpu.shared", "GPU-7::0 GPU-7::1"),
        ("resource=gpu.example.com", "pool-a/gpu-0"),
        ("resource=nvidia.com/gp", ""),
        ("namespace=ml", "GPU-0 GPU-1"),
        ("namespace=m", ""),
        ("pod=LLAMA", "GPU-0 GPU-1"),
        ("device=gpu-7", "GPU-7::0 GPU-7::1"),
        ("state=held", "pool-a/gpu-0 GPU-0 GPU-1 GPU-2 GPU-7::0"),
        ("state=free", "GPU-3 GPU-4 GPU-5 GPU-6 GPU-7::1"),
        ("state=unhealthy", "GPU-2"),
        ("q=Blender", "GPU-2"),
        ("q=ml/llama-0", "GPU-0 GPU-1"),
        ("q=uid-1", "GPU-0 GPU-1"),
        ("q=shared", "pool-a/gpu-0 GPU-7::0 GPU-7::1"),
        ("q=nobody", ""),
        ("state=held&resource=nvidia.com/gpu.shared", "GPU-7::0"),
    ],
)
def test_devices(snapshot: Snapshot, text: str, found: str) -> None:
    assert ids(snapshot, text) == found.split()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "engine-0 llama-0 render-1 shared-1 shared-2 vllm-0"),
        ("namespace=dra", "shared-1 shared-2"),
        ("q=gpu.example.com", "shared-1 shared-2"),
        ("q=shared-2", "shared-2"),
        ("device=gpu-0", "llama-0 shared-1 shared-2"),
        ("resource=nvidia.com/gpu", "llama-0 render-1"),
        ("resource=nvidia.com/gpu&namespace=ml", "llama-0"),
        ("state=unhealthy", "render-1"),
        ("state=held", "llama-0 render-1 shared-1 shared-2 vllm-0"),
        ("state=free", ""),
        ("pod=engine", "engine-0"),
    ],
)
def test_pods(snapshot: Snapshot, text: str, found: str) -> None:
    pods = ItemMatcher(filters(text)).pods(State(snapshot=snapshot))
    assert sorted(pod for _, pod in pods) == found.split()


A, B = Holder("ml", "train-0", "main", "uid-a"), Holder("web", "serve-1", "server")
ADMIN = Holder("ops", "watcher", "main")
NAME = PublishedName("nic.example.com", "pool-b", "Eth-1")
CLAIMED = scene.snapshot(
    scene.claimed(
        *("gpu-0", ClaimHolding(A, "ml", "mine", "", "r", GPU), ClaimHolding(B, "web", "ours")),
        ClaimHolding(ADMIN, "ops", "watch", admin=True),
        driver="gpu.nvidia.com",
        pool="worker-3",
        cdi=["GPU=claim-1"],
    ),
    scene.claimed(
        *("Eth-1", ClaimHolding(B, "web", "ours", "share-7")),
        driver="nic.example.com",
        pool="pool-b",
        published=PublishedDevice(
            NAME,
            uuid="U-1",
            pci_address="0000:3b:00.0",
            model="ConnectX",
            attributes=(("link", "infiniband"),),
            taints=(Taint("nic.example.com/link", "down", "NoExecute"),),
        ),
        allocatable=False,
    ),
    scene.claimed("eth-2", driver="nic.example.com", pool="pool-b"),
    scene.claimed("eth-3", driver="nic.example.com", pool="pool-b", parent="pool-b/Eth-1", alternative=True),
    scene.claimed("eth-4", driver="nic.example.com", pool="pool-b", reserved=[ClaimName("web", "next")]),
    published=["nic.example.com"],
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "gpu-0 Eth-1 eth-2 eth-3 eth-4"),
        ("driver=nic.example.com", "Eth-1 eth-2 eth-3 eth-4"),
        ("driver=nic", ""),
        ("resource=nic.example.com", "Eth-1 eth-2 eth-3 eth-4"),
        # What a holder asked by.
        ("resource=nvidia.com/gpu", "gpu-0"),
        ("resource=gpu", "gpu-0"),
        ("state=held", "gpu-0 Eth-1"),
        ("state=free", "eth-2"),
        # A health that nobody reports is not bad.
        ("state=unhealthy", "Eth-1"),
        ("pool=worker-3", "gpu-0"),
        ("device=ETH", "Eth-1 eth-2 eth-3 eth-4"),
        ("claim=ours", "gpu-0 Eth-1"),
        ("claim=our", ""),
        ("claim=watch", ""),
        ("namespace=ml", "gpu-0"),
        ("namespace=ops", ""),
        ("pod=serve", "gpu-0 Eth-1"),
        # One holder must have all of it.
        ("namespace=ml&pod=serve", ""),
        ("claim=mine&namespace=web", ""),
        ("claim=ours&namespace=web&driver=nic.example.com", "Eth-1"),
        ("q=SHARE-7", "Eth-1"),
        ("q=web/ours", "gpu-0 Eth-1"),
        ("q=ops/watcher", "gpu-0"),
        ("q=uid-a", "gpu-0"),
        ("q=gpu=CLAIM-1", "gpu-0"),
        ("q=nvidia.com/gpu", "gpu-0"),
        ("q=u-1", "Eth-1"),
        ("q=3b:00", "Eth-1"),
        ("q=connectx", "Eth-1"),
        ("q=link infini", "Eth-1"),
        ("q=link=down:NoExecute", "Eth-1"),
        ("q=nothing", ""),
    ],
)
def test_claimed_devices(text: str, found: str) -> None:
    kept = [name.rpartition("/")[2] for name in ids(CLAIMED, text)]
    assert kept == found.split()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("claim=mine", "train-0"),
        ("resource=gpu", "train-0"),
        ("driver=nic.example.com", "serve-1"),
        ("q=ours", "serve-1"),
    ],
)
def test_pods_by_their_own_claims(text: str, found: str) -> None:
    assert [pod for _, pod in ItemMatcher(filters(text)).pods(State(snapshot=CLAIMED))] == found.split()


_THROUGH = st.tuples(
    st.sampled_from("abc"), st.sampled_from(["one", "two"]), st.sampled_from([None, False, True])
)


@given(st.lists(st.lists(_THROUGH, max_size=4), max_size=3), st.sampled_from(["one", "two"]))
def test_a_claim_finds_the_pods_that_hold_by_it_and_no_administrator(
    devices: list[list[tuple[str, str, bool | None]]], claim: str
) -> None:
    made = [
        scene.claimed(
            str(number),
            *(ClaimHolding(Holder("n", pod, "c"), "n", name, admin=admin) for pod, name, admin in every),
        )
        for number, every in enumerate(devices)
    ]
    state = State(snapshot=scene.snapshot(*made))
    holding = [
        (pod, name, number) for number, every in enumerate(devices) for pod, name, admin in every if not admin
    ]
    matcher = ItemMatcher(Filters(claim=claim))
    assert matcher.pods(state) == {("n", pod) for pod, name, _ in holding if name == claim}
    found = {int(one.device.key.device.rpartition("/")[2]) for one in matcher.devices(state.devices)}
    assert found == {number for _, name, number in holding if name == claim}


ANOMALIES = (
    Anomaly(
        "double_held", "nvidia.com/gpu", "GPU-1", None, "held twice", pods=(("ml", "train-0"), ("web", "x"))
    ),
    Anomaly("plugin_gone", "example.com/nic", evidence="no plugin", devices=("nic-1", "nic-2")),
    Anomaly("unhealthy_held", "nvidia.com/gpu", "GPU-2", B, "XID 79"),
    Anomaly("stale", ""),
)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", "double_held plugin_gone unhealthy_held stale"),
        ("kind=plugin_gone", "plugin_gone"),
        ("resource=nvidia.com/gpu", "double_held unhealthy_held"),
        ("device=NIC-2", "plugin_gone"),
        ("device=gpu", "double_held unhealthy_held"),
        ("namespace=web", "double_held unhealthy_held"),
        ("namespace=ml&pod=train", "double_held"),
        ("namespace=ml&pod=x", ""),
        ("q=xid", "unhealthy_held"),
        ("q=serve-1", "unhealthy_held"),
    ],
)
def test_anomalies(text: str, kinds: str) -> None:
    assert [a.kind for a in filter(ItemMatcher(filters(text)).anomaly, ANOMALIES)] == kinds.split()


def test_the_kinds_of_anomalies_are_those_of_the_code() -> None:
    package = Path(exporter.mapping.__file__).parents[1]
    paths = [*package.glob("mapping/*.py"), package / "views" / "documents.py"]
    source = "\n".join(path.read_text() for path in paths)
    made = set(re.findall(r'\bAnomaly\(\s*(?:\*\()?"(\w+)"', source))
    assert len(made) >= 4
    assert made <= set(KINDS)
    assert all(f'"{kind}"' in source for kind in KINDS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("resource=nvidia.com/gpu", "nvidia.com/gpu"),
        ("resource=gpu", "nvidia.com/gpu"),
        ("q=GPU.SHARED", "nvidia.com/gpu.shared"),
        ("q=gpu&resource=nvidia.com/gpu.shared", "nvidia.com/gpu.shared"),
    ],
)
def test_resources(snapshot: Snapshot, text: str, found: str) -> None:
    assert list(filter(ItemMatcher(filters(text)).resource, snapshot.resources())) == found.split()


@pytest.mark.parametrize(("text", "count"), [("", 1), ("device=GPU", 0), ("state=held", 0), ("q=engine", 1)])
def test_containers_with_cpus_or_memory(snapshot: Snapshot, text: str, count: int) -> None:
    assert len(ItemMatcher(filters(text)).containers(snapshot)) == count


def test_a_device_of_several_pods_keeps_its_holders_and_only_matching_pods_are_kept() -> None:
    both = scene.snapshot(device("d", Holder("a", "one", "c"), Holder("b", "two", "c")))
    state = State(snapshot=both)
    assert ItemMatcher(Filters(namespace="a")).devices(state.devices) == list(state.devices)
    assert ItemMatcher(Filters(q="two")).pods(state) == {("b", "two")}


def test_an_unknown_health_matches_no_health() -> None:
    held = device("d", A, ok=False)
    assert states(DeviceStatus(held)) == {StateFilter.HELD}
    assert ids(Snapshot(devices=(held,), complete=False), "state=unhealthy") == []


@settings(max_examples=50)
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_text_as_it_is_shown_finds_its_item(name: str, other: str) -> None:
    shown = spelled(name).strip()
    kept = Filters(driver=spelled(name), device=shown, q=shown)
    assert _matches(scene.claimed(name, driver=name, pool=other), kept)
    assert _matches(device(name), Filters(device=shown, q=shown))
    try:
        parse_list([("driver", name), ("q", other)], CLAIM_FILTERS)
    except QueryError:
        assert len(name) > 512 or len(other) > 512


def _matches(one: Device, kept: Filters) -> bool:
    return ItemMatcher(kept).device(DeviceStatus(one))


def test_q_searches_workloads_and_reports_of_plugins_too(snapshot: Snapshot) -> None:
    report = AdvertisedDevice(
        False, "XID 79", attributes=(("model", "H100"), ("path", "/dev/nvidia3")), parent="B-1"
    )
    pods = {
        ("ml", "llama-0"): PodIdentity("ml", "llama-0", "u", workload=Workload("StatefulSet", "Llama")),
        ("dra", "shared-1"): PodIdentity("dra", "shared-1", "u", workload=Workload("Job", "sharing")),
    }
    state = scene.state(snapshot, at=1.0, pods=pods, advertised=scene.reported({"GPU-3": report}))
    assert found(state, Filters(q="statefulset llama")) == ["GPU-0", "GPU-1"]
    for q in ("h100", "model h", "/dev/nvidia3", "b-1", "xid"):
        assert found(state, Filters(q=q)) == ["GPU-3"], q
    assert ids(snapshot, "q=h100") == []
    assert found(state, Filters(q="job sharing")) == ["pool-a/gpu-0"]
    assert ItemMatcher.of(state, Filters(q="statefulset")).pods(state) == {("ml", "llama-0")}
