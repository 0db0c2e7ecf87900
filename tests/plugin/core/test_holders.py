import json

from hypothesis import given
from hypothesis import strategies as st

from harness.recordings import RECORDINGS
from kubelet import holders


def recording(name: str) -> bytes:
    return (RECORDINGS / name).read_bytes()


def test_a_real_list_answer_is_read() -> None:
    held = holders.from_list(recording("init-sidecar-guaranteed-and-completed-job.list.binpb"))
    assert held["held.example/nic"] == {"0000:3b:02.-0", "0000:3b:02.-5"}
    assert "dev-0" in held["held.example/foo"]


def test_a_real_allocatable_answer_is_read() -> None:
    answer = recording("dra-shared-and-inline-claims.allocatable.binpb")
    assert holders.from_allocatable(answer) == {"held.example/foo": {f"dev-{n}" for n in range(8)}}


def test_a_real_checkpoint_is_read() -> None:
    held = holders.from_checkpoint(recording("kubelet_internal_checkpoint.json"))
    assert held == {"held.example/foo": {f"dev-{n}" for n in (0, 2, 3, 4, 5, 6, 7)}}


def test_a_checkpoint_without_entries_holds_nothing() -> None:
    empty = {"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}, "Checksum": 1}
    assert holders.from_checkpoint(json.dumps(empty).encode()) == {}


@given(st.binary(max_size=100))
def test_garbage_is_an_answer_or_unreadable(content: bytes) -> None:
    for read in (holders.from_list, holders.from_allocatable, holders.from_checkpoint):
        try:
            read(content)
        except holders.UnreadableError:
            continue


def test_everything_that_any_part_holds_is_held() -> None:
    assert holders.union({"a": frozenset("x")}, {"a": frozenset("y"), "b": frozenset("z")}) == {
        "a": {"x", "y"},
        "b": {"z"},
    }
