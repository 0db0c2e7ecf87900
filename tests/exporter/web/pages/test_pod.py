"""A pod's page: earlier pods of its name, and the drawing of NUMA nodes."""

from collections.abc import Mapping, Sequence

import pytest

from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.mapping.model import (
    ClaimHolding,
    Container,
    Device,
    Holder,
    PinnedMemory,
)
from exporter.web.pages.pod import ITEMS, NumaPicture, PodLife, lives, numa_picture
from harness import scene
from harness.scene import device

# --- pods of one name -----------------------------------------------------------------------------------


def row(number: int, start: float, end: float | None, uid: str = "", device: str = "gpu") -> HoldingRow:
    key = HoldingKey("r/x", device, "ns", "pod", "main")
    last = None if end is None else Bound(end, end, Certainty.AT_ONCE)
    return HoldingRow(number, key, HoldingFacts(uid), Bound(start, start, Certainty.AT_ONCE), last)


def shown(found: Sequence[PodLife]) -> list[tuple[str, list[int], bool]]:
    return [(life.uid, [one.id for one in life.rows], life.present) for life in found]


@pytest.mark.parametrize(
    ("rows", "present", "expected"),
    [
        (
            [row(1, 0, 10, "a"), row(2, 10, 20, "b"), row(3, 20, None, "c"), row(4, 21, None, "c")],
            ["c"],
            [("c", [4, 3], True), ("b", [2], False), ("a", [1], False)],
        ),
        (
            [row(1, 0, 10), row(2, 5, 20, device="other"), row(3, 30, None)],
            [""],
            [("", [3], True), ("", [2, 1], False)],
        ),
        ([row(1, 0, 10), row(2, 10, 20)], [], [("", [2, 1], False)]),
        ([row(1, 0, 10), row(2, 5, 20, "a")], [], [("a", [2], False), ("", [1], False)]),
        ([row(1, 0, 10, "a")], ["b"], [("b", [], True), ("a", [1], False)]),
        ([row(1, 0, None, "a"), row(2, 5, None, "b")], ["a", "b"], [("b", [2], True), ("a", [1], True)]),
        ([], [], []),
    ],
    ids=["uids", "a break", "no break", "an unknown uid", "no history", "two at once", "none"],
)
def test_a_uid_or_a_break_separates_pods_of_one_name(
    rows: list[HoldingRow], present: list[str], expected: list[tuple[str, list[int], bool]]
) -> None:
    assert shown(lives(rows, present)) == expected


def test_the_first_and_the_last_holding_of_a_pod() -> None:
    (life,) = lives([row(1, 0, None, "a"), row(2, 5, 9, "a")], ["a"])
    assert life.last is not None
    assert (life.first, life.last.id) == (life.last, 1)
    (none,) = lives([], ["b"])
    assert (none.first, none.last) == (None, None)


# --- NUMA nodes -----------------------------------------------------------------------------------------

MAIN, SIDE = Holder("ns", "pod", "main"), Holder("ns", "pod", "side")
CPUS = {0: 0, 1: 0, 2: 1, 3: 1}


def picture(
    container: Container, *devices: Device, cpus: Mapping[int, int] = CPUS, nodes: Sequence[int] = ()
) -> NumaPicture:
    return numa_picture([container], devices, cpus, nodes)


def held(name: str, *nodes: int, holder: Holder = MAIN) -> Device:
    return device(name, holder, resource="r/x", numa=nodes)


def boxes(found: NumaPicture) -> dict[str, list[str]]:
    return {box.name: [placed.item.shown.shown for placed in box.items] for box in found.boxes}


A0, GIB = held("a", 0), 1 << 30


@pytest.mark.parametrize(
    ("container", "devices", "kind", "words"),
    [
        (
            Container(MAIN, cpu_ids=(0, 1), memory=(PinnedMemory("memory", (0,), GIB),)),
            [A0],
            "aligned",
            "aligned: everything is on NUMA node 0",
        ),
        (Container(MAIN), [A0, held("b", 1)], "split", "split over NUMA nodes 0 and 1: a on 0; b on 1"),
        (
            Container(MAIN, cpu_ids=(1, 2)),
            [A0],
            "split",
            "split over NUMA nodes 0 and 1: a and CPU 1 on 0; CPU 2 on 1",
        ),
        (
            Container(MAIN),
            [held("a", 0, 1), held("b", 1)],
            "aligned",
            "aligned: everything is on NUMA node 1",
        ),
        (
            Container(MAIN, memory=(PinnedMemory("memory", (0, 1), 2 * GIB),)),
            [A0],
            "split",
            "split over NUMA nodes 0 and 1: a on 0; 2 GiB memory on 0-1",
        ),
        (
            Container(MAIN),
            [held("a")],
            "unknown",
            "NUMA alignment unknown for a",
        ),
        (
            Container(MAIN),
            [held("a", 1), held("b")],
            "unknown",
            "NUMA alignment unknown for b; a is on NUMA node 1",
        ),
        (
            Container(MAIN, cpu_ids=(1, 9)),
            [held("a", 0)],
            "unknown",
            "NUMA alignment unknown for CPU 9; a and CPU 1 are on NUMA node 0",
        ),
        (
            Container(MAIN),
            [A0, held("b", 1), held("c")],
            "split",
            "split over NUMA nodes 0 and 1: a on 0; b on 1; unknown for c",
        ),
    ],
)
def test_alignment_of_a_container(container: Container, devices: list[Device], kind: str, words: str) -> None:
    (verdict,) = picture(container, *devices).verdicts
    assert verdict.words == words
    assert verdict.kind == kind


def test_each_container_of_a_pod_has_its_own_alignment() -> None:
    found = numa_picture([Container(MAIN), Container(SIDE)], [A0, held("b", 1, holder=SIDE)], {})
    assert [(v.container.shown, v.kind) for v in found.verdicts] == [("main", "aligned"), ("side", "aligned")]
    details = [item.item.detail for box in found.boxes for item in box.items]
    assert details == ["r/x of main", "r/x of side"]


def test_every_item_is_in_the_box_of_its_node() -> None:
    memory = (PinnedMemory("memory", (1,), 1 << 20), PinnedMemory("x", (0, 1), 1 << 20))
    container = Container(MAIN, cpu_ids=(0, 1, 2, 9), memory=memory)
    found = picture(container, A0, held("b", 0, 1), held("c"), nodes=(0, 1, 2))
    assert boxes(found) == {
        "NUMA node 0": ["a", "CPUs 0-1"],
        "NUMA node 1": ["CPU 2", "1 MiB memory"],
        "NUMA node 2": [],
        "Across several nodes": ["b", "1 MiB x"],
        "NUMA node unknown": ["c", "CPU 9"],
    }
    assert found.drawn
    for box in found.boxes:
        assert all(item.y + item.height <= box.height for item in box.items)
        assert all(a.y + a.height < b.y for a, b in zip(box.items, box.items[1:], strict=False))
        cells = [(x, y) for item in box.items for x, y, _ in item.cells]
        assert len(set(cells)) == len(cells)


def test_claimed_devices_are_drawn_on_their_node_where_it_is_known() -> None:
    mine, others = (ClaimHolding(holder, "ns", "wish") for holder in (MAIN, SIDE))
    near = scene.claimed("gpu-2", mine, numa_nodes=(0,))
    claimed = [scene.claimed("gpu-0", mine), scene.claimed("gpu-1", others), near]
    found = numa_picture([Container(MAIN)], [A0, *claimed], CPUS)
    assert boxes(found) == {"NUMA node 0": ["a", "pool-a/gpu-2"], "NUMA node unknown": ["pool-a/gpu-0"]}
    (placed,) = found.boxes[-1].items
    assert (placed.item.kind, placed.item.href) == ("device", "/devices/gpu.example.com/pool-a%2Fgpu-0")
    (verdict,) = found.verdicts
    assert (verdict.kind, verdict.words) == (
        "unknown",
        "NUMA alignment unknown for pool-a/gpu-0; a and pool-a/gpu-2 are on NUMA node 0",
    )


def test_the_drawing_is_bounded() -> None:
    nothing = picture(Container(MAIN), nodes=(0, 1))
    assert (nothing.drawn, nothing.verdicts) == (False, ())
    found = picture(Container(MAIN), *(held(f"d{i}", 0) for i in range(ITEMS + 3)))
    assert (len(found.boxes[0].items), found.boxes[0].left_out) == (ITEMS, 3)
    many = picture(Container(MAIN, cpu_ids=tuple(range(500))), cpus=dict.fromkeys(range(500), 0))
    assert many.boxes[0].height < 200
    wide = picture(Container(MAIN), held("a", 70), nodes=range(200))
    assert "NUMA node 70" in boxes(wide)
    assert len(wide.boxes) <= 17
