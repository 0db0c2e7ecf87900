"""simulator.dra_allocation: which devices a claim is given."""

from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.dra_allocation import (
    DeviceName,
    Devices,
    UnschedulableError,
    allocate,
    name_of,
    published,
    quantity,
)
from simulator.dra_objects import (
    Object,
    claim,
    device,
    device_class,
    first_available,
    request,
    resource_slice,
    taint,
)

CLASSES = {
    "all": device_class("all", driver="d.example"),
    "big": device_class(
        "big", driver="d.example", attributes={"size": "big", "x.example/rank": 3, "ok": True}
    ),
}


def given_to(*requests: Object, devices: Devices) -> list[tuple[str, str]]:
    """Requests and devices of a claim that is allocated."""
    return [(one["request"], one["device"]) for one in allocate(claim("c", *requests), devices, CLASSES)]


def offering(*devices: Object, counters: dict[str, dict[str, str]] | None = None) -> Devices:
    slices = [resource_slice("d.example", "n", devices, count=2 if counters else 1)]
    if counters:
        slices.append(resource_slice("d.example", "n", (), count=2, counters=counters))
    return Devices.of(slices, ())


@pytest.mark.parametrize(
    ("text", "value"), [("40Gi", 40 * 1024**3), ("500m", Decimal("0.5")), ("10G", 10**10), ("3", 3), (0, 0)]
)
def test_quantities(text: str | int, value: object) -> None:
    assert quantity(text) == value


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        quantity("3 apples")


def test_only_the_newest_complete_generation_of_a_pool_counts() -> None:
    def part(name: str, pool: str, generation: int, count: int) -> Object:
        return resource_slice("d", "n", [device(name)], pool=pool, generation=generation, count=count)

    slices = [part("old", "p", 1, 1), part("a", "p", 2, 2), part("b", "p", 2, 2), part("c", "q", 1, 2)]
    assert list(published(slices)) == [DeviceName("d", "p", "a"), DeviceName("d", "p", "b")]


def test_the_first_devices_that_fit_are_given() -> None:
    attributes: dict[str, str | int | bool] = {"size": "big", "x.example/rank": 3, "ok": True}
    devices = offering(device("a"), device("b", attributes=attributes), device("c"))
    assert given_to(request("r", "big"), request("s", "all", 2), devices=devices) == [
        ("r", "b"),
        ("s", "a"),
        ("s", "c"),
    ]
    with pytest.raises(UnschedulableError, match="request r: 0 of 1 devices are free"):
        given_to(request("r", "all"), devices=devices)


def test_of_alternatives_the_first_that_fits_is_given() -> None:
    devices = offering(device("a"))
    either = first_available("r", request("big", "big"), request("small", "all"))
    assert given_to(either, devices=devices) == [("r/small", "a")]
    with pytest.raises(UnschedulableError, match="r/big"):
        given_to(either, devices=devices)


def test_every_device_is_for_administrators_alone_while_some_are_held() -> None:
    devices = offering(device("a"), device("b", taints=[taint("broken")]))
    tolerant = request("r", "all", every=True, tolerations=[{"key": "broken", "operator": "Exists"}])
    with pytest.raises(UnschedulableError, match="/n/b is not free"):
        given_to(request("r", "all", every=True), devices=devices)
    devices = offering(device("a"), device("b", taints=[taint("broken")]))
    assert given_to(request("r", "all", every=True, admin=True), devices=devices) == [("r", "a"), ("r", "b")]
    assert given_to(tolerant, devices=devices) == [("r", "a"), ("r", "b")], "admin access takes nothing"


def test_a_class_that_is_missing_and_a_selector_that_is_not_simulated() -> None:
    with pytest.raises(UnschedulableError, match="device class none does not exist"):
        given_to(request("r", "none"), devices=offering())
    odd = {"spec": {"selectors": [{"cel": {"expression": "device.driver.startsWith('d')"}}]}}
    with pytest.raises(ValueError, match="expected an equality"):
        allocate(claim("c", request("r", "odd")), offering(device("a")), {"odd": odd})


SIZES = st.sampled_from(["10Gi", "20Gi", "40Gi"])


@given(
    partitions=st.lists(SIZES, max_size=5),
    shareable=st.integers(0, 2),
    requests=st.lists(st.tuples(st.integers(1, 3), SIZES), max_size=8),
)
def test_no_claims_together_are_given_more_than_there_is(
    partitions: list[str], shareable: int, requests: list[tuple[int, str]]
) -> None:
    parts = [device(f"p{n}", consumes={"gpu": {"memory": size}}) for n, size in enumerate(partitions)]
    shared = [device(f"s{n}", capacity={"memory": "40Gi"}, shareable=True) for n in range(shareable)]
    slices = [
        resource_slice("d.example", "n", [*parts, *shared], count=2),
        resource_slice("d.example", "n", (), count=2, counters={"gpu": {"memory": "40Gi"}}),
    ]
    claims: list[Object] = []
    for count, memory in requests:
        one = claim("c", request("r", "all", count, capacity={"memory": memory}))
        try:
            results = allocate(one, Devices.of(slices, claims), CLASSES)
        except UnschedulableError:
            continue
        claims.append({"status": {"allocation": {"devices": {"results": results}}}})
    given_out = [one for c in claims for one in c["status"]["allocation"]["devices"]["results"]]
    alone = Counter(name_of(one) for one in given_out if "shareID" not in one)
    assert set(alone.values()) <= {1}
    of_the_gpu = sum(quantity(partitions[int(name.device[1:])]) for name in alone)
    assert of_the_gpu <= quantity("40Gi")
    shares = [(name_of(one), one["consumedCapacity"]["memory"]) for one in given_out if "shareID" in one]
    for name in {name for name, _ in shares}:
        assert sum(quantity(memory) for other, memory in shares if other == name) <= quantity("40Gi")
