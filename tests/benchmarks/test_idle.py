"""What ten thousand refreshes leave behind."""

from benchmarks.idle import compared, grown

BEFORE = {"floor": (48.8, 8, 14), "exporter": (61.0, 11, 16)}


def test_what_may_stay_is_no_leak() -> None:
    assert grown(BEFORE, BEFORE) == []
    assert grown(BEFORE, BEFORE | {"exporter": (64.9, 15, 18)}) == []


def test_memory_growth_is_reported() -> None:
    assert grown(BEFORE, BEFORE | {"exporter": (65.1, 11, 16)}) == [
        "exporter grew by 4.1 MiB and 0 descriptors"
    ]


def test_descriptors_that_stay_open_are_reported() -> None:
    assert grown(BEFORE, BEFORE | {"exporter": (61.0, 11, 19)}) == [
        "exporter grew by 0.0 MiB and 3 descriptors"
    ]


def test_before_and_after_stand_side_by_side() -> None:
    assert compared(BEFORE, BEFORE | {"exporter": (61.5, 12, 16)})["exporter, memory, MiB"] == ("61", "61.5")
