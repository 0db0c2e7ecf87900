"""exporter.cli.select: which devices, claimed devices and CPUs match."""

import click
import pytest

from exporter.cli.common import NoMatchError
from exporter.cli.select import (
    CpusEntry,
    HolderQuery,
    MappingAnswer,
    NamespacedPod,
    narrow,
    parse_query,
    select,
)
from harness.mappings import claim, device, holder, mapping


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


@pytest.mark.parametrize(
    ("question", "claimed"),
    [
        (HolderQuery("gpu.example.com"), ["gpu-7", "gpu-70"]),
        (HolderQuery("gpu.example.com", "gpu-7"), ["gpu-7"]),
        (HolderQuery("", "worker-3/gpu-70"), ["gpu-70"]),
        (HolderQuery("", "PU-7"), ["gpu-7", "gpu-70"]),
        (HolderQuery("nvidia.com/gpu"), []),
        (HolderQuery("cpu"), []),
    ],
)
def test_claimed_devices_are_found_by_driver_pool_and_name(question: HolderQuery, claimed: list[str]) -> None:
    cpus = CpusEntry("ml", "one", "main", None, 2, (2, 3), (0,))
    shown = mapping(device("GPU-1"), claims=(claim("gpu-7"), claim("gpu-70")), cpus=(cpus,))
    (told,) = select(shown, question).nodes
    assert [entry.device for entry in told.claims] == claimed
    assert bool(told.cpus) is (question.resource == "cpu")


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
