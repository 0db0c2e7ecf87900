"""exporter.mapping.slices: which devices the slices of the node publish, one event after the other."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping import slices
from exporter.mapping.published import ResourceSlice, SliceContent, content_of
from exporter.mapping.slices import RETURN_WITHIN, PublishedDevices


def read(
    name: str,
    *devices: str,
    generation: int = 1,
    of: int = 1,
    pool: str = "node",
    driver: str = "gpu.example.com",
    node: str = "node",
    model: str = "m",
    content: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> SliceContent:
    entries = [{"name": one, "attributes": {"model": {"string": model}}} for one in devices]
    found = {
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": of},
            "devices": content or entries,
        }
        | spec,
    }
    made = content_of(msgspec.convert(found, ResourceSlice))
    assert made is not None
    return made


def names(published: PublishedDevices) -> set[str]:
    return {name.device for name in published.published}


@pytest.fixture
def published() -> PublishedDevices:
    return PublishedDevices("node")


def test_a_complete_pool_is_published(published: PublishedDevices) -> None:
    published.replace([read("a", "gpu-0", of=2), read("b", "gpu-1", of=2)], 0)
    assert names(published) == {"gpu-0", "gpu-1"}
    assert published.drivers == {"gpu.example.com"}
    assert published.notes == ()


def test_an_empty_pool_is_known(published: PublishedDevices) -> None:
    published.put(read("a"), 0)
    assert names(published) == set()
    assert published.drivers == {"gpu.example.com"}


def test_a_pool_that_was_never_complete_is_not_known(published: PublishedDevices) -> None:
    published.put(read("x", "gpu-9", pool="other"), 0)
    published.put(read("a", "gpu-0", of=2), 0)
    assert names(published) == {"gpu-9"}
    assert published.drivers == frozenset()
    assert published.notes == (
        "the slices of pool node of gpu.example.com are not complete, or name a device twice",
    )
    published.remove("a", 1)
    assert published.drivers == {"gpu.example.com"}


def test_a_pool_that_names_a_device_twice_is_invalid(published: PublishedDevices) -> None:
    published.replace([read("a", "gpu-0", of=2), read("b", "gpu-0", "gpu-1", of=2)], 0)
    assert names(published) == set()
    assert published.drivers == frozenset()
    assert "name a device twice" in published.notes[0]
    published.put(read("b", "gpu-1", of=2), 1)
    assert names(published) == {"gpu-0", "gpu-1"}
    assert published.notes == ()


def test_slices_of_another_node_are_ignored(published: PublishedDevices) -> None:
    published.put(read("a", "gpu-0", node="other"), 0)
    assert (names(published), published.drivers) == (set(), frozenset())


def test_a_newer_generation_counts_when_it_is_complete(published: PublishedDevices) -> None:
    published.replace([read("a", "gpu-0", of=2), read("b", "gpu-1", of=2)], 0)
    published.put(read("a", "gpu-2", generation=2, of=2), 1)
    assert names(published) == {"gpu-0", "gpu-1"}
    published.put(read("b", "gpu-3", generation=2, of=2), 2)
    assert names(published) == {"gpu-2", "gpu-3"}


def test_an_older_generation_never_comes_back(published: PublishedDevices) -> None:
    published.put(read("old", "gpu-0", generation=1), 0)
    published.replace([read("old", "gpu-0"), read("a", "gpu-1", generation=2)], 1)
    assert names(published) == {"gpu-1"}
    published.put(read("a", "gpu-2", generation=3, of=2), 2)
    assert names(published) == {"gpu-1"}


def test_slices_vanish_for_a_moment(published: PublishedDevices) -> None:
    published.replace([read("a", "gpu-0", generation=7, of=2), read("b", "gpu-1", generation=7, of=2)], 0)
    before = published.published
    published.remove("a", 10)
    published.remove("b", 11)
    assert published.published is before
    assert published.drivers == {"gpu.example.com"}
    assert published.notes == ("the slices of pool node of gpu.example.com are gone: devices are as before",)
    assert published.expire(11 + RETURN_WITHIN - 0.1) == 11 + RETURN_WITHIN
    # The driver begins with its first generation.
    published.put(read("c", "gpu-0", generation=1), 12)
    assert names(published) == {"gpu-0"}
    assert published.expire(1000) is None
    assert names(published) == {"gpu-0"}


def test_slices_that_do_not_come_back_take_their_devices_along(published: PublishedDevices) -> None:
    published.put(read("a", "gpu-0"), 0)
    published.put(read("x", "nic-0", driver="nic.example.com"), 0)
    published.replace([read("x", "nic-0", driver="nic.example.com")], 10)
    assert names(published) == {"gpu-0", "nic-0"}
    assert published.expire(10 + RETURN_WITHIN) is None
    assert names(published) == {"nic-0"}
    assert published.drivers == {"nic.example.com"}


def test_what_is_unchanged_stays_the_same_object(published: PublishedDevices) -> None:
    published.put(read("a", "gpu-0", "gpu-1", of=2), 0)
    published.put(read("b", "gpu-2", of=2), 0)
    before, mapping = dict(published.published), published.published
    published.put(read("a", "gpu-0", "gpu-1", of=2), 1)
    assert published.published is mapping
    published.put(read("b", "gpu-2", of=2, model="n"), 2)
    changed = {name.device for name, device in published.published.items() if before[name] is not device}
    assert changed == {"gpu-2"}
    # The same devices in slices of another generation, with other names.
    published.replace([read("c", "gpu-0", "gpu-1", "gpu-2", generation=2)], 3)
    again = {name.device for name, device in published.published.items() if before[name] is not device}
    assert again == {"gpu-2"}


def _partitioned(*parts: str, generation: int = 1) -> list[SliceContent]:
    def consumes(amount: int) -> list[dict[str, Any]]:
        return [{"counterSet": "set-0", "counters": {"memory": {"value": f"{amount}Gi"}}}]

    entries = [{"name": "gpu-0", "consumesCounters": consumes(40)}]
    entries += [{"name": part, "consumesCounters": consumes(10)} for part in parts]
    sets = [{"name": "set-0", "counters": {"memory": {"value": "40Gi"}}}]
    return [
        read("counters", of=2, generation=generation, sharedCounters=sets),
        read("devices", of=2, generation=generation, content=entries),
    ]


def test_partitions_have_their_physical_device_from_counters_of_another_slice(
    published: PublishedDevices,
) -> None:
    published.replace(_partitioned("part-0", "part-1"), 0)
    before = dict(published.published)
    assert {name.device: device.parent for name, device in before.items()} == {
        "gpu-0": "",
        "part-0": "gpu-0",
        "part-1": "gpu-0",
    }
    assert list(published.counters.values()) == [40 * 2.0**30]
    published.replace(_partitioned("part-0", "part-1", generation=2), 1)
    assert all(before[name] is device for name, device in published.published.items())


def test_slices_beyond_the_bounds_are_left_out(
    published: PublishedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "MAX_DEVICES", 2)
    monkeypatch.setattr(slices, "MAX_SLICES", 3)
    published.put(read("a", "gpu-0", of=2), 0)
    published.put(read("b", "gpu-1", "gpu-2", of=2), 0)
    assert names(published) == set()
    assert published.drivers == frozenset()
    assert len(published.notes) == 2
    published.replace([read(f"s{n}", pool=f"p{n}") for n in range(5)], 1)
    assert published.drivers == frozenset()
    assert "left out" in published.notes[0]
    published.replace([read("a", "gpu-0")], 2)
    assert names(published) == {"gpu-0"}
    assert not any("left out" in note for note in published.notes)


EVENTS = st.one_of(
    st.builds(
        read,
        st.sampled_from("abc"),
        st.sampled_from(["gpu-0", "gpu-1"]),
        st.sampled_from(["gpu-2", "gpu-3"]),
        generation=st.integers(1, 3),
        of=st.integers(1, 3),
        model=st.sampled_from("mn"),
    ),
    st.sampled_from("abc"),
)


@settings(max_examples=200)
@given(st.lists(EVENTS, max_size=12))
def test_one_event_after_the_other_is_as_from_scratch(events: list[SliceContent | str]) -> None:
    published = PublishedDevices("node")
    present: dict[str, SliceContent] = {}
    for event in events:
        if isinstance(event, str):
            present.pop(event, None)
            published.remove(event, 0)
        else:
            present[event.name] = event
            published.put(event, 0)
        scratch = PublishedDevices("node")
        scratch.replace(present.values(), 0)
        newest = max((one.generation for one in present.values()), default=None)
        of_newest = [one for one in present.values() if one.generation == newest]
        twice = len({name for one in of_newest for name in one.devices}) < sum(
            len(one.devices) for one in of_newest
        )
        if of_newest and not twice and all(one.size == len(of_newest) for one in of_newest):
            assert published.published == scratch.published
            expected = {name for one in of_newest for name in one.devices}
            assert set(published.published) == expected
            assert published.drivers == scratch.drivers == {"gpu.example.com"}
        else:
            # What was once complete stays.
            assert scratch.drivers <= published.drivers
