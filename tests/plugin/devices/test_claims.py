from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plugin.devices.claims import ClaimResult, DeviceClaims, DeviceIds, claim_of
from plugin.discovery.source import Found


def test_a_device_is_known_by_its_claim_or_else_by_its_path() -> None:
    assert claim_of(Found("eth0", "/sys/class/net/eth0", claim="pci:0000:3b:00.0")) == "pci:0000:3b:00.0"
    assert claim_of(Found("v0", "/dev/v0")) == "/dev/v0"
    assert claim_of(Found("named")) == ""


def test_the_first_that_claims_a_device_keeps_it_whatever_the_order_becomes() -> None:
    claims = DeviceClaims()
    claims.configure(("a", "b"))
    assert claims.claim("b", {"x"}) == ClaimResult()
    claims.configure(("a", "b"))
    assert claims.claim("a", {"x", "y"}) == ClaimResult({"x": "b"})
    assert claims.claim("b", {"x", "y"}) == ClaimResult({"y": "a"})


def test_earlier_resources_are_waited_for_until_they_have_scanned() -> None:
    claims = DeviceClaims()
    claims.configure(("a", "b", "c"))
    assert claims.awaited("a") == ()
    assert claims.awaited("c") == ("a", "b")
    claims.scanned("a")
    assert claims.awaited("c") == ("b",)
    claims.scanned("b")
    assert claims.awaited("c") == ()
    assert claims.awaited("stranger") == ()
    # One that went and came back has not scanned yet.
    claims.release("a")
    assert claims.awaited("b") == ("a",)


def test_an_id_that_two_resources_have_is_reported_to_the_second_until_the_first_lets_go() -> None:
    identities = DeviceIds()
    assert identities.advertise("a.b/x", ["1", "2"]) == {}
    assert identities.advertise("a.b/y", ["2", "3"]) == {"2": "a.b/x"}
    assert identities.advertise("a.b/x", ["1"]) == {}
    assert identities.advertise("a.b/y", ["2", "3"]) == {}
    identities.release("a.b/y")
    identities.release("a.b/none")
    assert identities.advertise("a.b/x", ["2"]) == {}


RESOURCES = st.sampled_from(["a", "b", "c"])
THINGS = st.sets(st.sampled_from(["x", "y", "z", "w"]))


class Life(RuleBasedStateMachine):
    """Claims in any order: nothing has two holders, and nobody is refused what nobody has."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = DeviceClaims()
        self.wanted: dict[str, set[str]] = {}
        self.holds: dict[str, set[str]] = {}

    @rule(resource=RESOURCES, things=THINGS)
    def claim(self, resource: str, things: set[str]) -> None:
        claimed = self.claims.claim(resource, things)
        kept = self.holds.get(resource, set()) & things
        assert not kept & claimed.refused.keys()
        self.wanted[resource] = things
        self.holds[resource] = things - claimed.refused.keys()
        for thing, holder in claimed.refused.items():
            assert thing in self.holds[holder]
        self.wake(claimed.wake)

    @rule(resource=RESOURCES)
    def release(self, resource: str) -> None:
        self.wanted.pop(resource, None)
        self.holds.pop(resource, None)
        self.wake(self.claims.release(resource))

    def wake(self, resources: frozenset[str]) -> None:
        """Who is woken claims again, and so gets what is free."""
        for resource in sorted(resources):
            claimed = self.claims.claim(resource, self.wanted[resource])
            self.holds[resource] = self.wanted[resource] - claimed.refused.keys()
            assert claimed.wake == frozenset()

    @invariant()
    def everything_wanted_has_one_holder(self) -> None:
        held = [thing for things in self.holds.values() for thing in things]
        assert len(held) == len(set(held))
        assert set(held) == {thing for things in self.wanted.values() for thing in things}


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
