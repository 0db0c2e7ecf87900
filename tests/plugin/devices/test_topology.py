"""plugin.devices.topology, and `prefer: topology`: the best connected set of devices."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.devices import topology
from plugin.devices.allocation import Offer, prefer
from plugin.devices.device import Device
from plugin.devices.topology import Links, Position, closeness, position
from plugin.discovery.source import Found

ROOT = "/sys/devices/pci0000:80"
SWITCH = f"{ROOT}/0000:80:01.0/0000:81:00.0"


def device(name: str, sysfs: str = "", *numa: int, claim: str = "") -> Device:
    return Device(
        name, name, f"/dev/{name}", {}, numa, (), Found(name, f"/dev/{name}", sysfs=sysfs, claim=claim)
    )


def near(one: Device, other: Device, links: Links | None = None) -> int:
    here, there = position(one, links or {}), position(other, links or {})
    assert closeness(here, there) == closeness(there, here)
    return closeness(here, there)


def test_a_shorter_way_is_nearer() -> None:
    gpu = device("a", f"{SWITCH}/0000:82:00.0/0000:83:00.0", 1)
    linked = near(gpu, device("b", "", 0), {"/dev/a": {"/dev/b": 1}, "/dev/b": {"/dev/a": 1}})
    same_switch = near(gpu, device("b", f"{SWITCH}/0000:82:01.0/0000:84:00.0", 1))
    below = f"{SWITCH}/0000:82:02.0/0000:85:00.0/0000:86:00.0/0000:87:00.0"
    further_switch = near(gpu, device("b", below, 1))
    same_bridge = near(gpu, device("b", f"{ROOT}/0000:80:02.0/0000:90:00.0", 1))
    same_node = near(gpu, device("b", "/sys/devices/pci0000:a0/0000:a0:01.0/0000:a1:00.0", 1))
    other_node = near(gpu, device("b", "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 0))
    assert linked > same_switch > further_switch > same_bridge > same_node > other_node == 0
    assert near(gpu, device("b")) == 0, "what is unknown is near to nothing"
    assert near(device("a"), device("b")) == 0
    usb = device("a", f"{ROOT}/0000:80:14.0/usb1/1-2", 1), device("b", f"{ROOT}/0000:80:14.0/usb1/1-3", 1)
    assert near(*usb) == same_bridge, "of other buses, the host bridge"


def test_links_have_the_ends_of_claims_and_nodes() -> None:
    links = {"pci:0000:01:00.0": {"pci:0000:02:00.0": 80}, "pci:0000:02:00.0": {"pci:0000:01:00.0": 80}}
    assert near(device("a", claim="pci:0000:01:00.0"), device("b", claim="pci:0000:02:00.0"), links) == 180
    assert near(device("a", claim="pci:0000:01:00.0"), device("b", claim="pci:0000:03:00.0"), links) == 0


def linked(*pairs: str, devices: str = "abcdefgh", shares: int = 1, strength: int = 10) -> list[Offer]:
    """Offers of devices; each of `pairs` has a link."""
    links: dict[str, dict[str, int]] = {}
    for pair in pairs:
        one, other = pair[0], pair[1]
        links.setdefault(one, {})[other] = strength
        links.setdefault(other, {})[one] = strength
    return [
        Offer(f"{d}::{n}", d, (), Position(frozenset({d}), links.get(d, {})))
        for d in devices
        for n in range(shares)
    ]


def chosen(offers: list[Offer], size: int, *must: str) -> str:
    total = Counter(offer.device for offer in offers)
    ids = prefer("topology", offers, [f"{m}::0" for m in must], size, total)
    return "".join(sorted(i.partition(":")[0] for i in ids))


RINGS = ("ab", "bc", "cd", "da", "ac", "bd", "ef", "fg", "gh", "he", "eg", "fh")
"""Two groups of four that are linked with each other."""


def test_the_linked_devices_are_preferred() -> None:
    offers = linked(*RINGS)
    assert chosen(offers, 4) == "abcd"
    assert chosen(offers, 4, "g") == "efgh"
    assert chosen([offer for offer in offers if offer.device != "b"], 4) == "efgh"
    assert chosen(offers, 8) == "abcdefgh"
    assert chosen([], 3) == ""


def test_the_rest_stays_connected() -> None:
    without = [offer for offer in linked(*RINGS) if offer.device not in "ab"]
    assert chosen(without, 2) == "cd", "the four others stay whole"
    assert chosen(without, 1) == "c"


def test_shares_are_spread_and_then_the_same_devices_again() -> None:
    offers = linked(*RINGS, shares=2)
    assert chosen(offers, 4) == "abcd"
    assert chosen(offers, 10) == "aabbcdefgh"
    assert chosen(offers, 2, "e") == "ef"


def test_too_many_devices_are_chosen_by_numa_nodes() -> None:
    many = [Offer(f"d{n}", f"d{n}", (n % 2,), Position(numa_nodes=(n % 2,))) for n in range(2000)]
    total = Counter(offer.device for offer in many)
    assert prefer("topology", many, ["d1"], 500, total) == prefer("numa", many, ["d1"], 500, total)


@st.composite
def pairs(draw: st.DrawFn, most: int) -> tuple[list[Offer], list[str], int]:
    names = "abcdefgh"[: draw(st.integers(1, most))]
    links = draw(
        st.lists(st.sampled_from([a + b for a in names for b in names if a != b] or ["ab"]), max_size=12)
    )
    offers = linked(*links, devices=names, shares=draw(st.integers(1, 2)))
    must = draw(st.lists(st.sampled_from(sorted(names)), max_size=2, unique=True))
    return offers, must, draw(st.integers(max(1, len(must)), len(offers)))


def weight(offers: list[Offer], devices: tuple[str, ...]) -> int:
    positions = {offer.device: offer.position for offer in offers}
    return sum(closeness(positions[a], positions[b]) for a, b in combinations(devices, 2))


@settings(max_examples=100, deadline=None)
@given(pairs(7))
def test_no_set_is_better(drawn: tuple[list[Offer], list[str], int]) -> None:
    offers, must, size = drawn
    total = Counter(offer.device for offer in offers)
    ids = prefer("topology", offers, [f"{m}::0" for m in must], size, total)
    assert len(ids) == len(set(ids)) == size
    assert {f"{m}::0" for m in must} <= set(ids) <= {offer.id for offer in offers}
    devices = tuple(i.partition(":")[0] for i in ids)
    assert prefer("topology", list(reversed(offers)), [f"{m}::0" for m in must], size, total) == ids
    if size <= len(total):
        assert len(set(devices)) == size, "different physical devices first"
        best = max(weight(offers, s) for s in combinations(sorted(total), size) if set(must) <= set(s))
        assert weight(offers, devices) == best


@settings(max_examples=50, deadline=None)
@given(pairs(8))
def test_grown_sets_are_complete_too(drawn: tuple[list[Offer], list[str], int]) -> None:
    offers, must, size = drawn
    total = Counter(offer.device for offer in offers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "MAX_SETS", 0)
        ids = prefer("topology", offers, [f"{m}::0" for m in must], size, total)
    assert len(ids) == len(set(ids)) == size
    assert {f"{m}::0" for m in must} <= set(ids) <= {offer.id for offer in offers}


def test_grown_sets_find_groups() -> None:
    groups = [f"{a}{b}" for group in ("abcd", "efgh") for a, b in combinations(group, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topology, "MAX_SETS", 0)
        assert chosen(linked(*groups), 4, "f") == "efgh"
        assert chosen(linked(*groups, "ae", "af"), 4) == "abcd"
