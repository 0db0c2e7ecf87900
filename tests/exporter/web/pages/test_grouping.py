"""The groups of the status page's rows, and their headings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Device,
    DeviceKey,
    Holder,
    Snapshot,
)
from exporter.mapping.state import State
from exporter.views.matching import ItemMatcher
from exporter.views.query import Filters, RowGroup, Sort, SortColumn
from exporter.web.pages.rows import Cluster, arranged, clusters, row_items
from exporter.web.pages.status import GroupHeader, group_header

ALL = Filters()
BY_RESOURCE = Sort(SortColumn.RESOURCE)
A, B = Holder("ml", "a-0", "main"), Holder("ml", "b-0", "main")


def device(name: str, parent: str = "", *holders: Holder, resource: str = "v.com/gpu") -> Device:
    return Device(DeviceKey(resource, name), parent, (), True, holders)


ITEMS: tuple[Device | ClaimDevice, ...] = (
    device("G-1"),
    device("G-2::0", "G-2", A, resource="v.com/gpu.shared"),
    device("G-2::1", "G-2", A, B, resource="v.com/gpu.shared"),
    device("MIG-1", "G-2", resource="v.com/mig"),
    device("G-2", "", A, resource="other.com/gpu"),
    ClaimDevice(ClaimDeviceKey("v.com", "pool", "g-7", "s1"), (ClaimHolder(B, "ml", "mine"),)),
    ClaimDevice(ClaimDeviceKey("v.com", "pool", "g-8"), (ClaimHolder(B, "ml", "mine"),)),
)
STATE = State(
    snapshot=Snapshot(tuple(i for i in ITEMS if isinstance(i, Device))),
    taken_at=0.0,
    pods={("ml", "a-0"): PodIdentity("ml", "a-0", "u", workload=Workload("StatefulSet", "a"))},
)


def grouped(
    group: RowGroup, *, first: int = 0, number: int = 100, filters: Filters = ALL, sort: Sort = BY_RESOURCE
) -> tuple[Cluster, ...]:
    found = arranged(row_items(ITEMS, group, ItemMatcher(filters)), sort, STATE)
    return clusters(found, group, first, number)


def shown(found: tuple[Cluster, ...]) -> list[tuple[str, list[str]]]:
    return [("/".join(one.key[1:]) or one.key[0] if one.key else "", ids(one)) for one in found]


def ids(cluster: Cluster) -> list[str]:
    return [row.item.key.device for row in cluster.shown]


def headers(found: tuple[Cluster, ...]) -> list[GroupHeader | None]:
    return [group_header(cluster, STATE) for cluster in found]


def test_by_device_shares_and_slices_of_any_resource_stand_under_what_is_behind_them() -> None:
    assert shown(grouped(RowGroup.DEVICE)) == [
        ("", ["G-2"]),  # another vendor's, of the same name
        ("v.com/pool/g-7", ["g-7"]),
        ("", ["g-8", "G-1"]),
        ("v.com/G-2", ["G-2::0", "G-2::1", "MIG-1"]),
    ]


def test_by_pod_all_that_a_pod_holds_stands_together_and_what_is_free_is_last() -> None:
    assert shown(grouped(RowGroup.POD, sort=Sort(SortColumn.POD))) == [
        ("ml/a-0", ["G-2", "G-2::0", "G-2::1"]),
        ("ml/b-0", ["g-7", "g-8", "G-2::1"]),
        ("free", ["G-1", "MIG-1"]),
    ]
    assert shown(grouped(RowGroup.POD, sort=Sort(SortColumn.STATE, descending=True)))[-1] == (
        "free",
        ["G-1", "MIG-1"],
    )


def test_by_pod_a_filter_s_pods_alone_have_rows() -> None:
    found = grouped(RowGroup.POD, filters=Filters(pod="B-"))
    assert [key for key, _ in shown(found)] == ["ml/b-0", "free"]


def test_a_shared_device_shows_under_each_pod_with_that_pod_alone() -> None:
    found = grouped(RowGroup.POD, sort=Sort(SortColumn.POD))
    assert [e.holders for c in found for e in c.shown if e.item.key.device == "G-2::1"] == [(A,), (B,)]


def test_headings_count_and_name() -> None:
    device_heads = headers(grouped(RowGroup.DEVICE))
    assert device_heads[0] is None
    gpu = device_heads[-1]
    assert gpu is not None
    assert (gpu.name.shown, gpu.address) == ("G-2", "/devices/v.com/gpu.shared/G-2")
    assert gpu.counts == "2 devices of v.com/gpu.shared and 1 of v.com/mig: 2 held · 1 free"
    pod, _, free = headers(grouped(RowGroup.POD, sort=Sort(SortColumn.POD)))
    assert pod is not None
    assert free is not None
    assert (pod.before and pod.before.shown, pod.name.shown, pod.address) == ("ml", "a-0", "/pods/ml/a-0")
    assert (pod.of, pod.counts) == (
        "StatefulSet a",
        "1 device of other.com/gpu and 2 of v.com/gpu.shared",
    )
    assert (free.name.shown, free.address) == ("Held by no pod", "")


def test_an_unhealthy_device_is_counted_as_such() -> None:
    well = device("G-2::0", "G-2", A), device("G-2::1", "G-2", B)
    items = (replace(well[0], allocatable=False), well[1])
    found = clusters(row_items(items, RowGroup.DEVICE, ItemMatcher(ALL)), RowGroup.DEVICE, 0, 9)
    (heading,) = headers(found)
    assert heading is not None
    assert heading.counts == "2 devices of v.com/gpu: 1 unhealthy, held · 1 held"


@pytest.mark.parametrize("group", RowGroup)
@given(first=st.integers(0, 12), number=st.integers(1, 12))
def test_pages_follow_one_another_without_gap_or_repetition(group: RowGroup, first: int, number: int) -> None:
    whole = [row for cluster in grouped(group) for row in cluster.shown]
    part = grouped(group, first=first, number=number)
    assert [row for cluster in part for row in cluster.shown] == whole[first : first + number]
    assert all(cluster.shown for cluster in part)


def test_a_group_that_goes_on_from_the_page_before_says_so_and_counts_all_of_it() -> None:
    found = grouped(RowGroup.POD, sort=Sort(SortColumn.POD), first=1, number=3)
    assert shown(found) == [("ml/a-0", ["G-2::0", "G-2::1"]), ("ml/b-0", ["g-7"])]
    assert [cluster.continued for cluster in found] == [True, False]
    assert [len(cluster.every) for cluster in found] == [3, 3]
