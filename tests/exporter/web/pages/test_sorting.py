"""The order of the status page's rows."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.holdings import HeldSince, holdings
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
from exporter.views.query import Sort, SortColumn
from exporter.web.pages.parts import natural
from exporter.web.pages.rows import RowItem, arranged


def device(name: str, pod: str = "", *, resource: str = "r/x", numa: int = 0, well: bool = True) -> Device:
    holders = tuple(Holder("ns", one, "c") for one in sorted(pod.split()))
    return Device(DeviceKey(resource, name), "", (numa,) * (numa > 0), well, holders)


def state(*items: Device | ClaimDevice) -> State:
    """Pods are held since the unix time that their name ends with."""
    devices = tuple(sorted((i for i in items if isinstance(i, Device)), key=lambda d: d.key))
    claims = tuple(i for i in items if isinstance(i, ClaimDevice))
    snapshot = Snapshot(devices, claims)
    since = {h: HeldSince(float(h.holder.pod.rpartition("-")[2])) for h in holdings(snapshot)}
    return State(snapshot=snapshot, taken_at=0.0, since=since)


CLAIM = ClaimDevice(
    ClaimDeviceKey("m.example", "pool", "gpu-0"), (ClaimHolder(Holder("ns", "p-5", "c"), "ns", "mine"),)
)
ITEMS: tuple[Device | ClaimDevice, ...] = (
    device("d-1", "p-30", numa=1),
    device("d-2", "p-4 p-9", numa=3),
    device("d-10", numa=2, well=False),
    device("d-3", "p-100", resource="a/y", well=False),
    device("d-4", resource="a/y"),
    CLAIM,
)


def names(sort: Sort) -> list[str]:
    found = arranged(map(RowItem, ITEMS), sort, state(*ITEMS))
    return [row.item.key.device for row in found]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (Sort(SortColumn.RESOURCE), ["d-3", "d-4", "gpu-0", "d-1", "d-2", "d-10"]),
        (Sort(SortColumn.RESOURCE, descending=True), ["d-1", "d-2", "d-10", "gpu-0", "d-3", "d-4"]),
        (Sort(SortColumn.DEVICE), ["d-1", "d-2", "d-3", "d-4", "d-10", "gpu-0"]),
        (Sort(SortColumn.DEVICE, descending=True), ["gpu-0", "d-10", "d-4", "d-3", "d-2", "d-1"]),
        (Sort(SortColumn.STATE), ["d-3", "d-10", "gpu-0", "d-1", "d-2", "d-4"]),
        (Sort(SortColumn.STATE, descending=True), ["d-4", "gpu-0", "d-1", "d-2", "d-10", "d-3"]),
        (Sort(SortColumn.POD), ["d-2", "gpu-0", "d-1", "d-3", "d-4", "d-10"]),
        (Sort(SortColumn.POD, descending=True), ["d-3", "d-1", "gpu-0", "d-2", "d-4", "d-10"]),
        (Sort(SortColumn.SINCE), ["d-2", "gpu-0", "d-1", "d-3", "d-4", "d-10"]),
        (Sort(SortColumn.SINCE, descending=True), ["d-3", "d-1", "gpu-0", "d-2", "d-4", "d-10"]),
        (Sort(SortColumn.NUMA), ["d-1", "d-10", "d-2", "d-3", "d-4", "gpu-0"]),
        (Sort(SortColumn.NUMA, descending=True), ["d-2", "d-10", "d-1", "d-3", "d-4", "gpu-0"]),
    ],
)
def test_every_column_sorts_both_ways_and_what_has_nothing_to_sort_by_is_last(
    sort: Sort, expected: list[str]
) -> None:
    assert names(sort) == expected


def test_where_the_kubelet_cannot_tell_nothing_is_sorted_as_unhealthy() -> None:
    held = Device(DeviceKey("r/x", "b"), "", (), False, (Holder("ns", "p-1", "c"),))
    free = device("a")
    partial = State(snapshot=Snapshot((free, held), complete=False), taken_at=0.0)
    found = arranged([RowItem(free), RowItem(held)], Sort(SortColumn.STATE), partial)
    assert [row.item.key.device for row in found] == ["b", "a"]


def test_of_one_pod_alone_a_shared_device_is_sorted_by_that_pod() -> None:
    shared = device("d", "p-4 p-9")
    entries = [RowItem(shared, ("ns", "p-9")), RowItem(shared, ("ns", "p-4"))]
    found = arranged(entries, Sort(SortColumn.SINCE), state(shared))
    assert [row.pod for row in found] == [("ns", "p-4"), ("ns", "p-9")]


def test_of_one_pod_alone_a_shared_claimed_device_is_sorted_by_that_pod() -> None:
    through = tuple(ClaimHolder(Holder("ns", pod, "c"), "ns", "mine") for pod in ("p-4", "p-9"))
    shared = ClaimDevice(CLAIM.key, through)
    entries = [RowItem(shared, ("ns", "p-9")), RowItem(shared, ("ns", "p-4"))]
    found = arranged(entries, Sort(SortColumn.SINCE), state(shared))
    assert [row.pod for row in found] == [("ns", "p-4"), ("ns", "p-9")]


def test_names_are_ordered_by_their_numbers_but_not_hexadecimal_ones() -> None:
    wanted = ["0000:3b:00.0", "0000:3b:00.1", "GPU-52e-a", "GPU-9f-a", "dev-1", "dev-2", "dev-10"]
    found = arranged((RowItem(device(name)) for name in reversed(wanted)), Sort(SortColumn.RESOURCE), State())
    assert [row.item.key.device for row in found] == wanted


def test_long_names_are_in_order_too_and_only_usual_ones_are_remembered() -> None:
    long = "1-" * 100
    wanted = [f"{long}9", f"{long}10", "a2"]
    assert sorted((f"{long}10", f"{long}9", "a2"), key=natural) == wanted
    again: Callable[[str], bool] = lambda name: natural(name) is natural(name)  # noqa: E731 -- once
    assert again("a2")
    assert not again(long)


NAMES = st.text(max_size=8)


@given(
    st.lists(
        st.tuples(NAMES, NAMES, st.lists(NAMES, max_size=2), st.booleans(), st.integers(0, 3)), max_size=12
    ),
    st.builds(Sort, st.sampled_from(SortColumn), descending=st.booleans()),
)
def test_any_rows_can_be_sorted_and_none_is_lost(
    rows: list[tuple[str, str, list[str], bool, int]], sort: Sort
) -> None:
    items = [
        Device(DeviceKey(resource, name), "", (numa,), well, tuple(Holder("n", pod, "c") for pod in pods))
        for resource, name, pods, well, numa in rows
    ]
    entries = [*(RowItem(item) for item in items), RowItem(CLAIM)]
    found = arranged(entries, sort, State(snapshot=Snapshot(tuple(items)), taken_at=0.0))
    assert sorted(map(id, found)) == sorted(map(id, entries))
    assert arranged(found, sort, State(snapshot=Snapshot(tuple(items)), taken_at=0.0)) == found, "stable"
