"""exporter.cli.select: which devices and CPUs match."""

import click
import pytest
from msgspec.structs import replace

from exporter.cli.common import AskError, NoMatchError
from exporter.cli.select import (
    CpusEntry,
    HolderQuery,
    MappingAnswer,
    NamespacedPod,
    narrow,
    parse_query,
    select,
    unknown_states,
)
from exporter.views.schema import DeviceEntry, IdentityEntry
from harness.mappings import claim, claimed, device, holder, mapping


def devices_of(answer: MappingAnswer) -> list[str]:
    return [device.device for told in answer.nodes for device in told.devices]


NODE = mapping(
    device("GPU-1", holder("one")),
    device("GPU-10", holder("ten"), healthy=False),
    device("GPU-2"),
    device(
        "GPU-3::0", holder("one"), holder("two", "other"), resource="nvidia.com/gpu.shared", parent="GPU-3"
    ),
    device("0", resource="intel.com/gpu"),
    device("fuse-0", resource="smarter/fuse"),
)


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (HolderQuery(), ["GPU-1", "GPU-10", "GPU-2", "GPU-3::0", "0", "fuse-0"]),
        (HolderQuery("nvidia.com/gpu"), ["GPU-1", "GPU-10", "GPU-2"]),
        (HolderQuery("fuse"), ["fuse-0"]),
        (HolderQuery("gpu.shared"), ["GPU-3::0"]),
        (HolderQuery("nvidia.com/gpu", "GPU-1"), ["GPU-1"]),
        (HolderQuery("nvidia.com/gpu", "gpu-1"), ["GPU-1", "GPU-10"]),
        (HolderQuery("", "GPU-3"), ["GPU-3::0"]),
        (HolderQuery("", "-0"), ["fuse-0"]),
        (HolderQuery(pod=NamespacedPod("ml", "one")), ["GPU-1", "GPU-3::0"]),
        (HolderQuery("gpu.shared", pod=NamespacedPod("other", "two")), ["GPU-3::0"]),
        (HolderQuery(pod=NamespacedPod("ml", "")), ["GPU-1", "GPU-10", "GPU-3::0"]),
        (HolderQuery(pod=NamespacedPod("ml", ""), states=frozenset({"unhealthy"})), ["GPU-10"]),
    ],
)
def test_matches_are_found(question: HolderQuery, found: list[str]) -> None:
    assert devices_of(select(NODE, question)) == found


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            HolderQuery("tpu"),
            (
                "no resource 'tpu' on worker-3: there are intel.com/gpu, nvidia.com/gpu, "
                "nvidia.com/gpu.shared and smarter/fuse"
            ),
        ),
        (HolderQuery("GPU-10"), "there is no resource 'GPU-10', but a device: ask for =GPU-10"),
        (HolderQuery("fuse", "GPU"), "no device like 'GPU' of fuse on worker-3"),
        (HolderQuery(pod=NamespacedPod("ml", "on")), "no device on worker-3 is held by ml/on"),
    ],
)
def test_no_match_is_reported(question: HolderQuery, words: str) -> None:
    with pytest.raises(NoMatchError) as caught:
        select(NODE, question)
    assert caught.value.message == words


def test_a_short_name_that_two_resources_have_is_ambiguous() -> None:
    with pytest.raises(click.BadParameter, match=r"'gpu' may be intel.com/gpu and nvidia.com/gpu: say which"):
        select(NODE, HolderQuery("gpu"))


def test_an_empty_node_is_an_answer_but_not_to_a_question() -> None:
    assert devices_of(select(mapping(), HolderQuery())) == []
    with pytest.raises(NoMatchError, match=r"there are none$"):
        select(mapping(), HolderQuery("gpu"))


def test_what_was_copied_from_a_table_is_found() -> None:
    hostile = mapping(device("a\u202eb\x1b", holder("p\x9b", "n\u200b")))
    assert devices_of(select(hostile, HolderQuery("", "a\\u202eb\\x1b")))
    assert devices_of(select(hostile, HolderQuery(pod=NamespacedPod("n\\u200b", "p\\x9b"))))


@pytest.mark.parametrize(
    ("what", "pod", "query"),
    [
        ("", None, HolderQuery()),
        ("gpu", None, HolderQuery("gpu")),
        ("a/b=c=d", None, HolderQuery("a/b", "c=d")),
        ("=x", "ns/name", HolderQuery("", "x", NamespacedPod("ns", "name"))),
    ],
)
def test_a_command_line_is_read(what: str, pod: str | None, query: HolderQuery) -> None:
    assert parse_query(what, pod) == query


@pytest.mark.parametrize(
    ("pod", "namespace", "parsed"),
    [(None, "ml", NamespacedPod("ml", "")), ("one", "ml", NamespacedPod("ml", "one"))],
)
def test_a_namespace_completes_the_name_of_a_pod(
    pod: str | None, namespace: str, parsed: NamespacedPod
) -> None:
    assert parse_query("", pod, namespace).pod == parsed


MOVED = mapping(
    device("GPU-1", holder("old", requested_as="nvidia.com/gpu")),
    claimed(
        "gpu-7",
        holder("new", requested_as="nvidia.com/gpu"),
        cdi=("k8s.example.com/gpu=seven",),
        identity=IdentityEntry("GPU-7c1f", "0000:3b:00.0", "LATEST", "gpu.example.com"),
    ),
    claimed("gpu-70", holder("class", requested_as="big.example.com"), resource="example.com/part"),
    claimed("gpu-8", pool="shelf"),
    claims=(claim("gpu-7"), claim("gpu-70")),
    cpus=(CpusEntry("ml", "new", "main", None, 2, (2, 3), (0,)),),
)
"""A node that moved from a device plugin to a DRA driver."""


@pytest.mark.parametrize(
    ("question", "found"),
    [
        # What a container asked by, whichever way it gets devices.
        (HolderQuery("nvidia.com/gpu"), ["GPU-1", "gpu-7"]),
        (HolderQuery("gpu"), ["GPU-1", "gpu-7"]),
        (HolderQuery("big.example.com"), ["gpu-70"]),
        (HolderQuery("gpu", states=frozenset({"held"})), ["GPU-1", "gpu-7"]),
        # The driver, and the resource of its slice.
        (HolderQuery("gpu.example.com"), ["gpu-7", "gpu-70", "shelf/gpu-8"]),
        (HolderQuery("example.com/part"), ["gpu-70"]),
        (HolderQuery("part"), ["gpu-70"]),
        (HolderQuery("", "gpu-7"), ["gpu-7"]),
        (HolderQuery("gpu.example.com", "pu-7"), ["gpu-7", "gpu-70"]),
        (HolderQuery("", "gpu-8"), ["shelf/gpu-8"]),
        (HolderQuery("", "shelf/gpu-8"), ["shelf/gpu-8"]),
        (HolderQuery("", "k8s.example.com/gpu=seven"), ["gpu-7"]),
        (HolderQuery("", "=seven"), ["gpu-7"]),
        (HolderQuery("gpu", "GPU-7c1f"), ["gpu-7"]),
        (HolderQuery("", "0000:3b:00.0"), ["gpu-7"]),
        (HolderQuery(pod=NamespacedPod("ml", "new")), ["gpu-7"]),
        (HolderQuery("cpu"), []),
    ],
)
def test_claimed_devices_are_found_by_all_of_their_names(question: HolderQuery, found: list[str]) -> None:
    (node,) = select(MOVED, question).nodes
    assert [entry.device for entry in node.devices] == found
    # JSON has their claims, and those of no other device.
    assert [one.device for one in node.claims] == [name for name in ("gpu-7", "gpu-70") if name in found]
    assert bool(node.cpus) is (question.resource == "cpu" or question.pod is not None)


def test_a_class_and_an_extended_resource_of_one_name_are_both_found() -> None:
    answer = mapping(
        claimed("gpu-0", holder("by-class", requested_as="gpu")),
        claimed("gpu-1", holder("by-resource", requested_as="example.com/gpu")),
        claimed("gpu-2", holder("by-another", requested_as="gpu.example.com")),
    )
    assert devices_of(select(answer, HolderQuery("gpu"))) == ["gpu-0", "gpu-1"]
    assert devices_of(select(answer, HolderQuery("example.com/gpu"))) == ["gpu-1"]


def test_an_unknown_resource_is_reported_with_the_names_that_there_are() -> None:
    with pytest.raises(NoMatchError) as caught:
        select(MOVED, HolderQuery("tpu"))
    assert caught.value.message == (
        "no resource 'tpu' on worker-3: there are big.example.com, cpu, example.com/part, gpu.example.com "
        "and nvidia.com/gpu"
    )


STATES = mapping(
    claimed("held", holder("one")),
    claimed("free"),
    claimed("tainted", healthy=False, free=False),
    claimed("tainted-held", holder("one"), healthy=False),
    claimed("partition", free=False, alternative=True),
    claimed("reserved", free=False),
)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("free", ["free"]),
        ("held", ["held", "tainted-held"]),
        ("unhealthy", ["tainted", "tainted-held"]),
    ],
)
def test_claimed_devices_are_found_by_state(state: str, found: list[str]) -> None:
    assert devices_of(select(STATES, HolderQuery(states=frozenset({state})))) == found


@pytest.mark.parametrize(
    ("device", "state", "reason"),
    [
        # Without ResourceSlices of the driver only held devices are known.
        (claimed("a", holder("one"), free=None), "free", "no ResourceSlices of the driver are known"),
        (
            claimed("a", holder("one"), free=None, healthy=True),
            "free",
            "no ResourceSlices of the driver are known",
        ),
        (
            claimed("a", holder("one")),
            "unhealthy",
            "no source reports the health of claimed devices",
        ),
        (device("a", holder("one"), healthy=None), "free", "the kubelet does not report allocatable devices"),
        (
            device("a", holder("one"), healthy=None),
            "unhealthy",
            "the kubelet does not report allocatable devices",
        ),
    ],
)
def test_a_state_that_no_source_knows_is_unknown(device: DeviceEntry, state: str, reason: str) -> None:
    node = mapping(device, claimed("b", holder("two"), healthy=True))
    words = f"it is unknown which devices of worker-3 are {state}: {reason}"
    assert unknown_states(node, {state}) == words
    assert unknown_states(node, {"held"}) == ""
    with pytest.raises(AskError) as caught:
        select(node, HolderQuery(states=frozenset({state})))
    assert caught.value.message == words
    fleet = replace(node, fleet=True)
    assert unknown_states(fleet, {state}).endswith(f"are {state}: no series says so")


def test_a_free_device_of_unknown_health_is_no_unhealthy_one() -> None:
    node = mapping(claimed("a"), claimed("b", alternative=True, free=False), claimed("c", free=False))
    assert unknown_states(node, {"free", "unhealthy"}) == ""
    older = mapping(device("a", holder("one")), device("b"), device("c", healthy=False))
    assert unknown_states(older, {"free", "unhealthy"}) == ""


def test_a_fleet_keeps_nodes_with_a_match_and_a_watcher_all_nodes() -> None:
    one = mapping(device("GPU-1"), node="a", labels={"cluster": "x"}).nodes[0]
    other = mapping(device("GPU-2"), node="a", labels={"cluster": "y"}).nodes[0]
    fleet = MappingAnswer((one, other), "Prometheus at x", fleet=True)
    asked = HolderQuery("", "GPU-2")
    assert [told.labels["cluster"] for told in select(fleet, asked).nodes] == ["y"]
    assert [len(told.devices) for told in narrow(fleet, asked).nodes] == [0, 1]
    assert narrow(fleet, HolderQuery("none")).nodes[0].devices == ()
    with pytest.raises(NoMatchError, match="on any of 2 nodes"):
        select(fleet, HolderQuery("", "GPU-3"))
