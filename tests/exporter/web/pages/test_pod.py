"""A pod that is made anew under its name is another one."""

from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.web.pages.pod import lives


def row(number: int, start: float, end: float | None, uid: str = "", device: str = "gpu") -> HoldingRow:
    key = HoldingKey("r/x", "", "", device, "", "", "", "ns", "pod", "main")
    return HoldingRow(
        number,
        key,
        HoldingFacts(uid),
        Bound(start, start, Certainty.AT_ONCE),
        None if end is None else Bound(end, end, Certainty.AT_ONCE),
    )


def test_uids_tell_pods_apart_and_the_newest_is_first() -> None:
    found = lives(
        [row(1, 0, 10, "a"), row(2, 10, 20, "b"), row(3, 20, None, "c"), row(4, 21, None, "c")], ["c"]
    )
    assert [(life.uid, [r.id for r in life.rows], life.present) for life in found] == [
        ("c", [4, 3], True),
        ("b", [2], False),
        ("a", [1], False),
    ]
    assert found[0].first is not None
    assert found[0].first.id == 3


def test_without_uids_a_time_in_which_nothing_was_held_tells_them_apart() -> None:
    found = lives([row(1, 0, 10), row(2, 5, 20, device="other"), row(3, 30, None)], [""])
    assert [([r.id for r in life.rows], life.present) for life in found] == [([3], True), ([2, 1], False)]
    (one,) = lives([row(1, 0, 10), row(2, 10, 20)], [])
    assert len(one.rows) == 2, "what may have gone on without a break is not torn apart"


def test_an_unknown_uid_is_not_made_one_with_a_known_one() -> None:
    found = lives([row(1, 0, 10), row(2, 5, 20, "a")], [])
    assert sorted(life.uid for life in found) == ["", "a"]


def test_a_pod_of_which_history_has_nothing_is_there_all_the_same() -> None:
    (now, before) = lives([row(1, 0, 10, "a")], ["b"])
    assert (now.uid, now.rows, now.present) == ("b", (), True)
    assert (now.first, now.last) == (None, None)
    assert not before.present
    assert lives([], []) == ()


def test_two_pods_of_a_name_may_be_there_at_once() -> None:
    found = lives([row(1, 0, None, "a"), row(2, 5, None, "b")], ["a", "b"])
    assert [(life.uid, life.present) for life in found] == [("b", True), ("a", True)]


def test_the_last_is_the_one_that_is_held_still() -> None:
    (life,) = lives([row(1, 0, None, "a"), row(2, 5, 9, "a")], ["a"])
    assert life.last is not None
    assert life.last.id == 1
