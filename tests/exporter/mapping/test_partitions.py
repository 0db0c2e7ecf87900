"""exporter.mapping.partitions: amounts, physical devices, and which unheld partitions count as free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.dra import Consumption, CounterName, PublishedDevice, PublishedName
from exporter.mapping.partitions import alternatives, parents, quantity

GI = 2.0**30


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0.0),
        ("1", 1.0),
        ("500m", 0.5),
        ("40Gi", 40 * GI),
        ("1.5Ki", 1536.0),
        ("1e3", 1000.0),
        ("12E", 12e18),
        ("1E2", 100.0),
        ("2n", 2e-9),
        ("3u", 3e-6),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1", -1.0),
        ("2k", 2000.0),
        ("1Ei", 2.0**60),
    ],
)
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "Gi", "1KI", "1K", "1e", "1e999", "0x1", "\u0661", "1\n", "9" * 50]
)
def test_other_text_is_no_quantity(text: str) -> None:
    assert quantity(text) is None


def _name(device: str, pool: str = "node") -> PublishedName:
    return PublishedName("gpu.example.com", pool, device)


def _device(name: str, gpu: str, memory: float, engines: float, pool: str = "node") -> PublishedDevice:
    consumes = (Consumption(gpu, "engines", engines), Consumption(gpu, "memory", memory))
    return PublishedDevice(_name(name, pool), consumes=consumes)


def _available(*sets: str, pool: str = "node") -> dict[CounterName, float]:
    amounts = {"engines": 7.0, "memory": 80 * GI}
    return {
        CounterName("gpu.example.com", pool, gpu, name): amount
        for gpu in sets
        for name, amount in amounts.items()
    }


WHOLE = _device("gpu-0", "set-0", 80 * GI, 7)
HALVES = [_device(f"gpu-0-half-{n}", "set-0", 40 * GI, 3) for n in range(2)]
QUARTERS = [_device(f"gpu-0-quarter-{n}", "set-0", 20 * GI, 1) for n in range(4)]


def _with_parents(*devices: PublishedDevice, sets: tuple[str, ...] = ("set-0",)) -> list[PublishedDevice]:
    found = parents(devices, _available(*sets))
    return [replace(device, parent=found.get(device.name, "")) for device in devices]


def _free(devices: list[PublishedDevice], held: set[str], *sets: str) -> set[str]:
    names = {_name(name) for name in held}
    found = alternatives(devices, names, _available(*sets or ("set-0",)))
    assert not found & names
    return {device.name.device for device in devices} - {name.device for name in found} - held


def test_the_parent_is_the_device_that_takes_all_of_the_set() -> None:
    devices = [WHOLE, *HALVES, PublishedDevice(_name("nic"))]
    assert parents(devices, _available("set-0")) == {
        _name("gpu-0"): "",
        _name("gpu-0-half-0"): "gpu-0",
        _name("gpu-0-half-1"): "gpu-0",
    }


def test_without_one_whole_device_the_parent_is_the_counter_set() -> None:
    assert set(parents(HALVES, _available("set-0")).values()) == {"set-0"}
    twin = _device("gpu-0-all", "set-0", 80 * GI, 7)
    assert set(parents([WHOLE, twin, *HALVES], _available("set-0")).values()) == {"set-0"}


def test_a_device_that_takes_all_of_one_counter_alone_is_no_whole_device() -> None:
    most = _device("gpu-0-most", "set-0", 80 * GI, 6)
    sole = PublishedDevice(_name("gpu-0-memory"), consumes=(Consumption("set-0", "memory", 80 * GI),))
    assert set(parents([most, sole], _available("set-0")).values()) == {"set-0"}


def test_a_device_of_several_sets_belongs_to_the_first_with_a_whole_device() -> None:
    both = PublishedDevice(
        _name("pair"), consumes=(Consumption("power", "watts", 1), Consumption("set-0", "engines", 1))
    )
    available = _available("set-0") | {CounterName("gpu.example.com", "node", "power", "watts"): 9.0}
    assert parents([WHOLE, both], available)[both.name] == "gpu-0"


def test_an_unheld_physical_device_is_free_once() -> None:
    assert _free(_with_parents(*QUARTERS, *HALVES, WHOLE), set()) == {"gpu-0"}


def test_beside_held_partitions_the_first_that_fits_is_free() -> None:
    devices = _with_parents(WHOLE, *HALVES, *QUARTERS)
    assert _free(devices, {"gpu-0-half-1"}) == {"gpu-0-half-0"}
    assert _free(devices, {"gpu-0-half-0", "gpu-0-quarter-3"}) == {"gpu-0-quarter-0"}
    assert _free(devices, {"gpu-0-half-0", "gpu-0-half-1"}) == set()
    assert _free(devices, {"gpu-0"}) == set()


def test_every_counter_must_be_left() -> None:
    greedy = _device("gpu-0-greedy", "set-0", GI, 6)
    devices = _with_parents(WHOLE, greedy, *QUARTERS[:2])
    assert _free(devices, {"gpu-0-quarter-1"}) == {"gpu-0-greedy"}
    assert _free(devices, {"gpu-0-quarter-0", "gpu-0-quarter-1"}) == set()


def test_physical_devices_are_counted_apart() -> None:
    others = [_device("gpu-1", "set-1", 80 * GI, 7), _device("gpu-1-half-0", "set-1", 40 * GI, 3)]
    devices = _with_parents(WHOLE, *HALVES, *others, sets=("set-0", "set-1"))
    assert _free(devices, {"gpu-0-half-0"}, "set-0", "set-1") == {"gpu-0-half-1", "gpu-1"}


def test_pools_have_counters_of_their_own() -> None:
    away = _device("gpu-0", "set-0", 80 * GI, 7, pool="away")
    available = _available("set-0") | _available("set-0", pool="away")
    assert alternatives([WHOLE, away], {WHOLE.name}, available) == frozenset()


def test_devices_without_counters_are_no_alternatives() -> None:
    nics = [PublishedDevice(_name(f"nic-{n}")) for n in range(3)]
    assert alternatives(nics, (), {}) == frozenset()


def test_a_partition_of_an_unknown_counter_does_not_count_as_free() -> None:
    assert alternatives([WHOLE], (), {}) == {WHOLE.name}
    assert alternatives([WHOLE], {WHOLE.name}, {}) == frozenset()


@given(st.sets(st.sampled_from(range(7))), st.permutations([WHOLE, *HALVES, *QUARTERS]))
def test_at_most_one_is_free_and_it_fits(numbers: set[int], order: list[PublishedDevice]) -> None:
    every = _with_parents(WHOLE, *HALVES, *QUARTERS)
    held = {every[number].name.device for number in numbers}
    free = _free(_with_parents(*order), held)
    assert free == _free(every, held)
    assert len(free) <= 1
    used = [one for one in every if one.name.device in held | free]
    if free:
        for counter, limit in (("engines", 7.0), ("memory", 80 * GI)):
            taken = sum(c.amount for one in used for c in one.consumes if c.counter == counter)
            assert taken <= limit
