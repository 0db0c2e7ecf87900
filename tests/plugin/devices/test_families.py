import pytest

from plugin.config.load import load
from plugin.config.plan import ResourcePlan
from plugin.devices import identify
from plugin.devices.identify import Identifier, members
from plugin.discovery.source import Found


def family(name: str, more: str = "") -> ResourcePlan:
    text = f"version: 1\nresources:\n- name: {name!r}\n  discover: [{{glob: {{paths: [/dev/*]}}}}]\n{more}"
    (plan,) = load(text.encode(), "x")
    return plan


def found(name: str, **attrs: str) -> Found:
    return Found(name, f"/dev/{name}", attrs)


def test_devices_of_one_name_are_one_resource_and_each_member_has_its_own() -> None:
    plan = family("a.b/{{ device.attrs.target }}")
    devices = [found("x", target="one"), found("y", target="two"), found("z", target="one")]
    made = members(plan, devices)
    assert list(made.plans) == ["a.b/one", "a.b/two"]
    one = made.plans["a.b/one"]
    assert (one.name, one.family, one.member_of) == ("a.b/one", None, plan.family)
    assert one.sources == plan.sources
    identity = Identifier(one).identify(devices, lambda _: ())
    assert [item.device.id for item in identity.devices] == ["x", "z"]
    # Equal plans, or a look that finds the same would begin every member anew.
    assert members(plan, devices).plans == made.plans


def test_only_devices_that_match_name_a_resource() -> None:
    plan = family("a.b/{{ device.name }}", "  match: \"{{ device.name != 'y' }}\"\n")
    assert list(members(plan, [found("x"), found("y")]).plans) == ["a.b/x"]


def test_a_bad_name_is_left_out_and_reported() -> None:
    plan = family("a.b/{{ device.attrs.target }}")
    made = members(
        plan, [found("x"), found("y", target="no way"), found("z", target=""), found("w", target="k")]
    )
    assert list(made.plans) == ["a.b/k"]
    places, reasons = zip(*made.left_out, strict=True)
    assert places == ("/dev/x", "/dev/y", "/dev/z")
    assert "has no attribute 'target'" in reasons[0]
    assert reasons[1].startswith("its resource cannot have the name 'a.b/no way', ")
    assert reasons[2].startswith("its resource cannot have the name 'a.b/', ")
    # A member finds those no more than its family does.
    identity = Identifier(made.plans["a.b/k"]).identify([found("x"), found("w", target="k")], lambda _: ())
    assert ([i.device.id for i in identity.devices], identity.left_out) == (["w"], ())


def test_a_family_has_so_many_members_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "MOST_MEMBERS", 2)
    made = members(family("a.b/{{ device.name }}"), [found("x"), found("y"), found("z"), found("x")])
    assert list(made.plans) == ["a.b/x", "a.b/y"]
    assert made.left_out == (("/dev/z", "there are 2 resources of its family already"),)


def test_a_resource_with_a_name_of_its_own_is_no_family() -> None:
    with pytest.raises(ValueError, match=r"a\.b/c is no family"):
        members(family("a.b/c"), [])
