from hypothesis import given
from hypothesis import strategies as st

from plugin.devices.cdi import CdiNames

NAMES = st.sets(st.sampled_from(["v/c=0", "v/c=1", "v/c=2"]))


def test_the_first_by_name_has_what_two_would_have_whoever_came_first() -> None:
    names = CdiNames()
    assert names.claim("e/b", ["v/c=0", "v/c=1"]) == {}
    assert names.claim("e/a", ["v/c=0"]) == {}
    assert names.claim("e/b", ["v/c=0", "v/c=1"]) == {"v/c=0": "e/a"}
    assert names.claim("e/c", ["v/c=0", "v/c=1"]) == {"v/c=0": "e/a", "v/c=1": "e/b"}
    assert names.taken("e/c", ["v/c=2"]) == {}
    names.release("e/a")
    assert names.claim("e/b", ["v/c=0", "v/c=1"]) == {}


@given(st.dictionaries(st.sampled_from(["e/a", "e/b", "e/c"]), NAMES))
def test_every_name_is_one_resources(wanted: dict[str, set[str]]) -> None:
    names = CdiNames()
    for resource, own in wanted.items():
        names.claim(resource, own)
    held = {resource: own - names.claim(resource, own).keys() for resource, own in wanted.items()}
    assert set().union(*held.values()) == set().union(*wanted.values())
    assert sum(map(len, held.values())) == len(set().union(*held.values()))
