"""exporter.refresh.cpus: which NUMA node each CPU is on, from a sysfs that may hold anything."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.refresh.pipeline import numa_of_cpus, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("\n", set()), ("0\n", {0}), ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}), ("5-5", {5})],
)
def test_the_kernels_lists_are_read(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-99999999999", "1--2", "0x1", "1;2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|expected a range of CPU numbers"):
        parse_cpu_list(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sets(st.integers(0, 300)))
def test_every_set_comes_back_from_its_list(cpus: set[int]) -> None:
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    text = ",".join(f"{low}-{high}" if high > low else str(low) for low, high in ranges)
    assert parse_cpu_list(text) == cpus


def _node(root: Path, name: str, cpulist: bytes | None) -> None:
    (root / name).mkdir()
    if cpulist is not None:
        (root / name / "cpulist").write_bytes(cpulist)


def test_each_cpu_has_the_node_that_lists_it_and_a_node_that_makes_no_sense_is_left_out(
    tmp_path: Path,
) -> None:
    _node(tmp_path, "node0", b"0-1,4\n")
    _node(tmp_path, "node1", b"2-3\n")
    _node(tmp_path, "node2", b"\n")
    _node(tmp_path, "node3", b"\xff\xfe")
    _node(tmp_path, "node4", b"0-999999999999\n")
    _node(tmp_path, "node5", None)
    _node(tmp_path, "nodes", b"9\n")
    (tmp_path / "possible").write_text("0-1\n", encoding="ascii")
    assert numa_of_cpus(tmp_path) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}


def test_without_sysfs_nothing_is_known(tmp_path: Path) -> None:
    assert numa_of_cpus(tmp_path / "missing") == {}
