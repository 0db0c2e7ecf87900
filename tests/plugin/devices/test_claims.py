"""Claims of resources, by the order of the configuration and of their scans."""

from random import Random

from hypothesis import given, note, settings
from hypothesis import strategies as st

from plugin.devices.claims import ClaimResult, DeviceClaims, NamesInUse, claim_of
from plugin.discovery.source import Found


def test_a_device_is_identified_by_its_claim_or_its_path() -> None:
    assert claim_of(Found("eth0", "/sys/class/net/eth0", claim="pci:0000:3b:00.0")) == "pci:0000:3b:00.0"
    assert claim_of(Found("v0", "/dev/v0")) == "/dev/v0"
    assert claim_of(Found("named")) == ""


def test_the_first_claim_of_a_device_stays() -> None:
    claims = DeviceClaims()
    claims.configure(("a", "b"))
    assert claims.claim("b", {"x"}) == ClaimResult()
    claims.configure(("a", "b"))
    assert claims.claim("a", {"x", "y"}) == ClaimResult({"x": "b"})
    assert claims.claim("b", {"x", "y"}) == ClaimResult({"y": "a"})


def test_resources_wait_for_the_first_scan_of_earlier_ones() -> None:
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


def test_a_name_of_several_resources_is_reported_with_the_first_of_the_others() -> None:
    names = NamesInUse()
    assert names.replace("a.b/x", ["1", "2"]) == {}
    assert names.replace("a.b/y", ["2", "3"]) == {"2": "a.b/x"}
    assert names.replace("a.b/a", ["2"]) == {"2": "a.b/x"}
    assert names.shared("a.b/z", ["1", "2", "4"]) == {"1": "a.b/x", "2": "a.b/a"}
    assert names.replace("a.b/x", ["1"]) == {}
    names.release("a.b/a")
    names.release("a.b/none")
    assert names.replace("a.b/y", ["2", "3"]) == {}


class Life:
    """Claims and releases in a random order, and what each resource wants and has."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.claims = DeviceClaims()
        self.wanted: dict[str, set[str]] = {}
        self.owned: dict[str, set[str]] = {}

    def step(self) -> None:
        resource = self.random.choice("abc")
        wanted = {device for device in "wxyz" if self.random.random() < 0.5}
        note(f"{resource}: {sorted(wanted)}")
        if self.random.random() < 0.3:
            self.wanted.pop(resource, None)
            self.owned.pop(resource, None)
            self.wake(self.claims.release(resource))
        else:
            kept = self.owned.get(resource, set()) & wanted
            had = self.wanted.get(resource, set())
            if had == self.owned.get(resource, set()) and self.random.random() < 0.5:
                self.wake(
                    self.own(resource, wanted, self.claims.change(resource, wanted - had, had - wanted)).wake
                )
            else:
                self.wake(self.claim(resource, wanted).wake)
            assert kept <= self.owned[resource]
        owned = [device for devices in self.owned.values() for device in devices]
        assert len(owned) == len(set(owned))
        assert set(owned) == {device for devices in self.wanted.values() for device in devices}

    def claim(self, resource: str, wanted: set[str]) -> ClaimResult:
        return self.own(resource, wanted, self.claims.claim(resource, wanted))

    def own(self, resource: str, wanted: set[str], result: ClaimResult) -> ClaimResult:
        self.wanted[resource] = wanted
        self.owned[resource] = wanted - result.refused.keys()
        assert all(device in self.owned[owner] for device, owner in result.refused.items())
        return result

    def wake(self, resources: frozenset[str]) -> None:
        """A resource that is woken claims again, and gets the free devices."""
        for resource in sorted(resources):
            assert self.claim(resource, self.wanted[resource]).wake == frozenset()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_wanted_device_has_one_owner(seed: int) -> None:
    life = Life(Random(seed))
    for _ in range(30):
        life.step()
