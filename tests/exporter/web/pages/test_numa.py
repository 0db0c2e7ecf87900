"""The drawing of NUMA nodes, and whether a container is aligned."""

import pytest

from exporter.mapping.model import Container, Device, DeviceKey, Holder, PinnedMemory
from exporter.web.pages.pod import ITEMS, NumaPicture, numa_picture

MAIN, SIDE = Holder("ns", "pod", "main"), Holder("ns", "pod", "side")
CPUS = {0: 0, 1: 0, 2: 1, 3: 1}


def device(name: str, *nodes: int, holder: Holder = MAIN) -> Device:
    return Device(DeviceKey("r/x", name), numa_nodes=nodes, holders=(holder,))


def boxes(found: NumaPicture) -> dict[str, list[str]]:
    return {box.name: [placed.item.shown.shown for placed in box.items] for box in found.boxes}


@pytest.mark.parametrize(
    ("container", "devices", "kind", "words"),
    [
        (
            Container(MAIN, cpu_ids=(0, 1), memory=(PinnedMemory("memory", (0,), 1 << 30),)),
            [device("a", 0)],
            "aligned",
            "aligned: everything is on NUMA node 0",
        ),
        (
            Container(MAIN),
            [device("a", 0), device("b", 1)],
            "split",
            "split over NUMA nodes 0 and 1: a on 0; b on 1",
        ),
        (
            Container(MAIN, cpu_ids=(1, 2)),
            [device("a", 0)],
            "split",
            "split over NUMA nodes 0 and 1: a and CPU 1 on 0; CPU 2 on 1",
        ),
        (
            Container(MAIN),
            [device("a", 0, 1), device("b", 1)],
            "aligned",
            "aligned: everything is on NUMA node 1",
        ),
        (
            Container(MAIN, memory=(PinnedMemory("memory", (0, 1), 2 << 30),)),
            [device("a", 0)],
            "split",
            "split over NUMA nodes 0 and 1: a on 0; 2 GiB memory on 0-1",
        ),
        (
            Container(MAIN),
            [device("a")],
            "unknown",
            "the NUMA nodes of its devices, CPUs and memory are unknown",
        ),
        (
            Container(MAIN),
            [device("a", 1), device("b")],
            "aligned",
            "aligned: a is on NUMA node 1; unknown: b",
        ),
    ],
)
def test_it_is_said_whether_a_container_is_aligned(
    container: Container, devices: list[Device], kind: str, words: str
) -> None:
    (verdict,) = numa_picture([container], devices, CPUS).verdicts
    assert (verdict.kind, verdict.words) == (kind, words)


def test_everything_is_in_the_box_where_it_lies() -> None:
    container = Container(
        MAIN,
        cpu_ids=(0, 1, 2, 9),
        memory=(PinnedMemory("memory", (1,), 1 << 20), PinnedMemory("x", (0, 1), 1 << 20)),
    )
    found = numa_picture([container], [device("a", 0), device("b", 0, 1), device("c")], CPUS, nodes=(0, 1, 2))
    assert boxes(found) == {
        "NUMA node 0": ["a", "CPUs 0-1"],
        "NUMA node 1": ["CPU 2", "1 MiB memory"],
        "NUMA node 2": [],
        "Across several nodes": ["b", "1 MiB x"],
        "Unknown node": ["c", "CPU 9"],
    }
    assert found.drawn
    for box in found.boxes:
        assert all(item.y + item.height <= box.height for item in box.items)
        assert all(a.y + a.height < b.y for a, b in zip(box.items, box.items[1:], strict=False))
        cells = [(x, y) for item in box.items for x, y, _ in item.cells]
        assert len(set(cells)) == len(cells)


def test_each_container_of_a_pod_is_judged_by_itself() -> None:
    found = numa_picture(
        [Container(MAIN), Container(SIDE)], [device("a", 0), device("b", 1, holder=SIDE)], {}
    )
    assert [(v.container.shown, v.kind) for v in found.verdicts] == [("main", "aligned"), ("side", "aligned")]
    details = [item.item.detail for box in found.boxes for item in box.items]
    assert details == ["r/x of main", "r/x of side"]


def test_nothing_to_be_drawn_is_not_drawn() -> None:
    found = numa_picture([Container(MAIN)], [], {}, nodes=(0, 1))
    assert (found.drawn, found.verdicts) == (False, ())


def test_a_box_is_bounded() -> None:
    found = numa_picture([Container(MAIN)], [device(f"d{i}", 0) for i in range(ITEMS + 3)], {})
    assert (len(found.boxes[0].items), found.boxes[0].left_out) == (ITEMS, 3)
    many = numa_picture([Container(MAIN, cpu_ids=tuple(range(500)))], [], dict.fromkeys(range(500), 0))
    assert many.boxes[0].height < 200
    wide = numa_picture([Container(MAIN)], [device("a", 70)], {}, nodes=range(200))
    assert "NUMA node 70" in boxes(wide)
    assert len(wide.boxes) <= 17
