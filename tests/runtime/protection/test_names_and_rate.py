"""runtime.protection.names and rate: pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.protection.names import is_allowed, names, told
from runtime.protection.rate import Bucket

CERTIFICATE = {
    "subject": ((("commonName", "not-a-san.example"),),),
    "subjectAltName": (
        ("DNS", "a.example"),
        ("IP Address", "10.0.0.1"),
        ("IP Address", "2001:DB8:0:0:0:0:0:1\n"),
        ("email", "me@example.com"),
        ("URI", "spiffe://cluster/ns/monitoring"),
        ("DirName", "elsewhere"),
    ),
}


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, True),
        ({"a.example"}, True),
        ({"b.example", "10.0.0.1"}, True),
        ({"2001:db8::1"}, True),
        ({"2001:0DB8:0:0::0001"}, True),
        ({"me@example.com"}, True),
        ({"spiffe://cluster/ns/monitoring"}, True),
        ({"A.example"}, False),
        ({"*.example"}, False),
        ({"example"}, False),
        ({"not-a-san.example"}, False),
        ({"elsewhere"}, False),
        ({"10.0.0.10"}, False),
    ],
)
def test_a_name_must_be_exactly_one_of_those_allowed(allowed: set[str] | None, expected: bool) -> None:
    assert is_allowed(CERTIFICATE, None if allowed is None else frozenset(allowed)) is expected


def test_a_wildcard_certificate_is_taken_by_its_name_alone() -> None:
    certificate = {"subjectAltName": (("DNS", "*.example"),)}
    assert is_allowed(certificate, frozenset({"*.example"}))
    assert not is_allowed(certificate, frozenset({"a.example"}))


@pytest.mark.parametrize("certificate", [None, {}, {"subjectAltName": ()}])
def test_who_has_no_name_is_none_of_those_allowed(certificate: dict[str, object] | None) -> None:
    assert names(certificate) == ()
    assert not is_allowed(certificate, frozenset({"a.example"}))
    assert told(certificate) == "none"


def test_names_in_a_log_are_harmless() -> None:
    assert told({"subjectAltName": (("URI", "a\n\x1b[31m" + "x" * 9999),)}).isprintable()


def test_a_bucket_gives_its_burst_and_then_one_each_interval() -> None:
    now = 100.0
    bucket = Bucket(0.5, 3, lambda: now)
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take() == pytest.approx(0.5)
    now += 0.25
    assert bucket.take() == pytest.approx(0.25)
    now += 0.25
    assert bucket.take() == 0.0
    assert bucket.take() > 0
    now += 60.0
    # However long nobody came, it is not more than full.
    assert [bucket.take() == 0.0 for _ in range(4)] == [True, True, True, False]


@given(
    st.floats(0.001, 100.0),
    st.integers(1, 50),
    st.lists(st.floats(0.0, 200.0), min_size=1, max_size=100),
)
def test_no_more_come_in_than_the_rate_allows(interval: float, burst: int, pauses: list[float]) -> None:
    now = 0.0
    bucket = Bucket(interval, burst, lambda: now)
    taken: list[float] = []
    for pause in pauses:
        now += pause
        wait = bucket.take()
        if not wait:
            taken.append(now)
            continue
        # It says when: then there is one.
        now += wait * 1.000001 + 1e-9
        assert not bucket.take()
        taken.append(now)
    for first, at in enumerate(taken):
        within = [t for t in taken[first:] if t <= at + 10 * interval]
        assert len(within) <= burst + 11


def test_what_floats_lose_costs_no_request() -> None:
    now = 1e9
    bucket = Bucket(0.1, 1, lambda: now)
    for _ in range(1000):
        assert bucket.take() == 0.0
        now += 0.1
