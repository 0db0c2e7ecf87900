"""Ids of devices, and the resources of a family."""

import pytest

from plugin.config.load import load
from plugin.config.plan import ResourcePlan
from plugin.devices import identify
from plugin.devices.identify import Identifier, members
from plugin.discovery.source import Found
from plugin.names import natural


def plan(name: str = "a.b/c", **keys: str) -> ResourcePlan:
    text = f"version: 1\nresources:\n- name: {name!r}\n  discover: [{{exec: {{command: [/bin/list]}}}}]\n"
    (made,) = load((text + "".join(f"  {k}: {v}\n" for k, v in keys.items())).encode(), "x")
    return made


def no_numa(_found: Found) -> tuple[int, ...]:
    return ()


def ids(identifier: Identifier, *found: Found) -> list[str]:
    return [item.id for item in identifier.identify(found, no_numa).devices]


def test_the_id_is_the_name_or_by_a_template() -> None:
    found = Found("video0", "/dev/video0", {"serial": "S1"})
    assert ids(Identifier(plan()), found) == ["video0"]
    assert ids(Identifier(plan(id='"{{ device.attrs.serial }}"')), found) == ["S1"]


def test_ids_are_in_natural_order() -> None:
    assert ids(Identifier(plan()), Found("v10"), Found("v2"), Found("v1")) == ["v1", "v2", "v10"]
    assert sorted(["a", "a1", "a01", "a1b", "b"], key=natural) == ["a", "a01", "a1", "a1b", "b"]


def test_long_names_are_in_natural_order_too_and_only_usual_ones_are_remembered() -> None:
    long = "1-" * 200
    assert sorted([f"{long}10", f"{long}9", "v2"], key=natural) == [f"{long}9", f"{long}10", "v2"]
    assert natural("v2") is natural("v2")
    assert natural(long) is not natural(long)


def test_only_matching_devices_have_an_id() -> None:
    identifier = Identifier(plan(match="\"{{ device.attrs.get('m') == 'x' }}\""))
    assert ids(identifier, Found("a", attrs={"m": "x"}), Found("b"), Found("c", attrs={"m": "y"})) == ["a"]


def test_devices_without_a_valid_id_are_left_out() -> None:
    identifier = Identifier(plan(id='"{{ device.attrs.serial }}"'))
    made = identifier.identify(
        [Found("a", "/dev/a"), Found("b", attrs={"serial": "x\ny"}), Found("c", attrs={"serial": "ok"})],
        no_numa,
    )
    assert [item.id for item in made.devices] == ["ok"]
    assert made.left_out[0][0] == "/dev/a"
    assert "has no attribute 'serial'" in made.left_out[0][1]
    assert made.left_out[1] == ("b", "it cannot have the id 'x\\ny': it has control characters")


def test_a_file_name_that_is_not_utf8_is_left_out() -> None:
    made = Identifier(plan()).identify([Found("a\udcff", "/x/a\udcff"), Found("b")], no_numa)
    assert [item.id for item in made.devices] == ["b"]
    assert "not valid UTF-8" in made.left_out[0][1]


def test_the_same_thing_found_twice_is_one_device() -> None:
    made = Identifier(plan()).identify([Found("a", "/dev/a"), Found("a", "/dev/a")], no_numa)
    assert (len(made.devices), made.left_out) == (1, ())


def test_the_first_device_with_an_id_keeps_it() -> None:
    identifier = Identifier(plan(id='"{{ device.attrs.serial }}"'))
    first, rival = Found("v1", "/dev/v1", {"serial": "S"}), Found("v0", "/dev/v0", {"serial": "S"})
    identifier.identify([first], no_numa)
    made = identifier.identify([rival, first], no_numa)
    assert [item.path for item in made.devices] == ["/dev/v1"]
    assert made.left_out == (("/dev/v0", "its id 'S' is taken by /dev/v1"),)
    # It goes, and the other one has it.
    assert [i.path for i in identifier.identify([rival], no_numa).devices] == ["/dev/v0"]


def test_numa_nodes_by_the_host_or_the_configuration() -> None:
    found, placed = Found("a"), Found("b", numa_node=3)

    def nodes(_found: Found) -> tuple[int, ...]:
        return (1, -1)

    def numa(made: ResourcePlan, item: Found) -> tuple[int, ...]:
        return Identifier(made).identify([item], nodes).devices[0].numa_nodes

    assert numa(plan(), found) == (1,)
    assert numa(plan(), placed) == (3,)
    assert numa(plan(numa="off"), placed) == ()
    assert numa(plan(numa="2"), found) == (2,)


def test_unchanged_devices_are_not_read_again() -> None:
    read: list[str] = []

    def nodes(found: Found) -> tuple[int, ...]:
        read.append(found.name)
        return ()

    identifier = Identifier(plan())
    identifier.identify([Found("a"), Found("b")], nodes)
    identifier.identify([Found("a"), Found("b", attrs={"new": "1"})], nodes)
    assert read == ["a", "b", "b"]


def found(name: str, **attrs: str) -> Found:
    return Found(name, f"/dev/{name}", attrs)


def test_devices_of_one_name_are_one_resource_and_each_member_has_its_own() -> None:
    family = plan("a.b/{{ device.attrs.target }}")
    devices = [found("x", target="one"), found("y", target="two"), found("z", target="one")]
    made = members(family, devices)
    assert list(made.plans) == ["a.b/one", "a.b/two"]
    one = made.plans["a.b/one"]
    assert (one.name, one.family, one.member_of) == ("a.b/one", None, family.family)
    assert one.sources == family.sources
    identity = Identifier(one).identify(devices, lambda _: ())
    assert [item.id for item in identity.devices] == ["x", "z"]
    # The plans are equal: another scan restarts no member.
    assert members(family, devices).plans == made.plans


def test_only_devices_that_match_name_a_resource() -> None:
    family = plan("a.b/{{ device.name }}", match="\"{{ device.name != 'y' }}\"")
    assert list(members(family, [found("x"), found("y")]).plans) == ["a.b/x"]


def test_a_bad_name_is_left_out_and_reported() -> None:
    family = plan("a.b/{{ device.attrs.target }}")
    made = members(
        family, [found("x"), found("y", target="no way"), found("z", target=""), found("w", target="k")]
    )
    assert list(made.plans) == ["a.b/k"]
    places, reasons = zip(*made.left_out, strict=True)
    assert places == ("/dev/x", "/dev/y", "/dev/z")
    assert "has no attribute 'target'" in reasons[0]
    assert reasons[1].startswith("its resource cannot have the name 'a.b/no way', ")
    assert reasons[2].startswith("its resource cannot have the name 'a.b/', ")
    # A member finds those no more than its family does.
    identity = Identifier(made.plans["a.b/k"]).identify([found("x"), found("w", target="k")], lambda _: ())
    assert ([i.id for i in identity.devices], identity.left_out) == (["w"], ())


def test_a_family_has_so_many_members_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "MOST_MEMBERS", 2)
    made = members(plan("a.b/{{ device.name }}"), [found("x"), found("y"), found("z"), found("x")])
    assert list(made.plans) == ["a.b/x", "a.b/y"]
    assert made.left_out == (("/dev/z", "there are 2 resources of its family already"),)


def test_a_resource_with_a_name_of_its_own_is_no_family() -> None:
    with pytest.raises(ValueError, match=r"a\.b/c is no family"):
        members(plan("a.b/c"), [])
