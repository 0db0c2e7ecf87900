from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.config.plan import Prefer, Sharing
from plugin.devices import allocation
from plugin.devices.allocation import Offer, offers, prefer
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory, ObservedDevice
from plugin.names import NaturalKey, natural
from runtime.clock import Instant


def shares(devices: dict[str, int], count: int = 1) -> list[Offer]:
    """Each device of `devices` (name: NUMA node) with `count` shares."""
    return [Offer(f"{d}::{n}", d, (node,)) for d, node in devices.items() for n in range(count)]


def whole(available: list[Offer]) -> Counter[str]:
    return Counter(offer.device for offer in available)


def devices(chosen: tuple[str, ...]) -> list[str]:
    return [i.split("::", maxsplit=1)[0] for i in chosen]


def test_shares_are_spread_over_physical_devices_first() -> None:
    available = shares({"a": 0, "b": 0, "c": 0}, 4)
    for how in ("none", "packed", "spread"):
        assert sorted(devices(prefer(how, available, [], 3, whole(available)))) == ["a", "b", "c"]
        assert Counter(devices(prefer(how, available, [], 5, whole(available)))).most_common(1)[0][1] == 2


def test_packed_takes_devices_in_use_and_spread_others() -> None:
    everything = shares({"a": 0, "b": 0}, 4)
    available = [offer for offer in everything if offer.id not in {"b::0", "b::1"}]
    assert devices(prefer("packed", available, [], 1, whole(everything))) == ["b"]
    assert devices(prefer("spread", available, [], 1, whole(everything))) == ["a"]


def test_numa_takes_the_node_that_just_fits() -> None:
    available = shares({"a": 0, "b": 1, "c": 0, "d": 1, "e": 0})
    assert sorted(devices(prefer("numa", available, [], 2, whole(available)))) == ["b", "d"]
    assert sorted(devices(prefer("numa", available, [], 3, whole(available)))) == ["a", "c", "e"]
    # None fits: the larger one whole, then the rest.
    assert sorted(devices(prefer("numa", available, [], 4, whole(available))))[:3] == ["a", "b", "c"]


def test_numa_stays_on_the_node_of_included_devices() -> None:
    available = shares({"a": 0, "b": 1, "c": 0, "d": 1, "e": 0})
    assert sorted(devices(prefer("numa", available, ["a::0"], 2, whole(available)))) == ["a", "c"]


def test_devices_without_a_node_come_last_under_numa() -> None:
    available = [Offer("x", "x"), Offer("a", "a", (0,)), Offer("b", "b", (0,))]
    assert prefer("numa", available, [], 2, whole(available)) == ("a", "b")


@given(
    st.sampled_from(["none", "packed", "spread", "numa"]),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(-1, 2)), max_size=16),
    st.data(),
)
def test_the_answer_is_always_one_that_the_kubelet_takes(
    how: Prefer, raw: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    available = list(
        {f"{d}::{n}": Offer(f"{d}::{n}", d, (node,) if node >= 0 else ()) for d, n, node in raw}.values()
    )
    ids = [offer.id for offer in available]
    must = data.draw(st.lists(st.sampled_from(ids), unique=True) if ids else st.just([]))
    size = data.draw(st.integers(len(must), len(ids))) if ids else 0
    chosen = prefer(how, available, must, size, Counter())
    assert len(chosen) == size == len(set(chosen))
    assert set(must) <= set(chosen) <= set(ids)
    assert prefer(how, available, must, size, Counter()) == chosen


@pytest.mark.parametrize(("size", "expected"), [(9, 2), (0, 0), (-1, 0)])
def test_more_than_there_is_and_less_than_nothing_are_answered_too(size: int, expected: int) -> None:
    available = shares({"a": 0, "b": 0})
    assert len(prefer("packed", available, [], size, Counter())) == expected


def test_an_unknown_id_is_a_device_of_its_own() -> None:
    inventory = Inventory(Sharing(2))
    inventory.survey([ObservedDevice(Device("a", "a", numa_nodes=(1,)))], Instant(0, 0))
    assert offers(inventory, ["a::1", "x", "x"]) == (Offer("a::1", "a", (1,)), Offer("x", "x"))


@pytest.mark.parametrize("how", ["none", "packed", "spread", "numa"])
def test_the_work_grows_with_the_number_of_offers_alone(how: Prefer, monkeypatch: pytest.MonkeyPatch) -> None:
    available = [Offer(f"gpu{n // 4}::{n % 4}", f"gpu{n // 4}", (n % 2,)) for n in range(10_000)]
    keys = Counter[str]()

    def counted(text: str) -> NaturalKey:
        keys.update([text])
        return natural(text)

    monkeypatch.setattr(allocation, "natural", counted)
    assert len(set(devices(prefer(how, available, [available[-1].id], 8, whole(available))))) == 8
    assert keys.total() < 4 * len(available)


@pytest.mark.parametrize("how", ["none", "packed", "spread", "numa"])
def test_thousands_of_shares_of_one_device_are_chosen_from_in_their_order(how: Prefer) -> None:
    available = [Offer(f"gpu::{n}", "gpu", (0,)) for n in reversed(range(10_000))]
    assert prefer(how, available, [], 5000, whole(available)) == tuple(f"gpu::{n}" for n in range(5000))
