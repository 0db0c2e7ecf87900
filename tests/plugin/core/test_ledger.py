"""What ids stand for: kept for as long as a pod may hold them, and shared by the processes of a node."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plugin.devices.ledger import Entries, Ledger, Page


def write(ledger: Ledger, found: Entries) -> Entries:
    page = ledger.page()
    merged = page.merged(found)
    ledger.written(page, merged)
    return merged


def test_what_is_recorded_of_an_id_stays_until_it_is_given_anew() -> None:
    ledger = Ledger()
    ledger.recall({"a/x": {"i": "/dev/old"}})
    assert ledger.offer("a/x", {"i": "/dev/new", "j": "/dev/j"}, ())
    assert ledger.of("a/x") == {"i": "/dev/old", "j": "/dev/j"}
    assert ledger.give("a/x", {"i": "/dev/new"})
    assert ledger.unwritten("a/x", ["i"])
    assert write(ledger, {}) == {"a/x": {"i": "/dev/new", "j": "/dev/j"}}
    assert not ledger.unwritten("a/x", ["i", "j"])
    assert not ledger.give("a/x", {"i": "/dev/new"})
    assert not ledger.offer("a/x", {"i": "/dev/new", "j": "/dev/j"}, ())


def test_what_is_not_advertised_any_more_goes_unless_it_is_held_or_nobody_knows() -> None:
    ledger = Ledger()
    ledger.recall({"a/x": {"i": "/i", "j": "/j"}})
    ledger.offer("a/x", {"k": "/k"}, None)
    assert ledger.of("a/x") == {"i": "/i", "j": "/j", "k": "/k"}
    ledger.offer("a/x", {"k": "/k", "static": ""}, {"i"})
    assert ledger.of("a/x") == {"i": "/i", "k": "/k"}
    assert write(ledger, {"a/x": {"j": "/j"}}) == {"a/x": {"i": "/i", "k": "/k"}}


def test_of_a_resource_that_goes_what_may_be_held_stays_until_nobody_holds_it() -> None:
    ledger = Ledger()
    ledger.offer("a/x", {"i": "/i", "j": "/j"}, ())
    file = write(ledger, {})
    ledger.leave("a/x", {"i": "/i"}, ())
    file = write(ledger, file)
    assert file == {"a/x": {"i": "/i"}}
    ledger.forget([("a/x", "i"), ("a/none", "n")])
    assert write(ledger, file) == {}
    assert write(ledger, {"a/x": {"i": "/i"}}) == {"a/x": {"i": "/i"}}  # who writes it anew is believed


def test_what_another_process_serves_is_left_as_it_is() -> None:
    other = {"b/y": {"n": "/n"}, "a/x": {"i": "/newer"}}
    ledger = Ledger()
    ledger.recall({"a/x": {"i": "/older", "j": "/j"}})
    assert write(ledger, other) == {"b/y": {"n": "/n"}, "a/x": {"i": "/newer", "j": "/j"}}
    ledger.offer("a/x", {"i": "/mine"}, ())
    ledger.give("a/x", {"i": "/mine"})
    assert write(ledger, other) == {"b/y": {"n": "/n"}, "a/x": {"i": "/mine"}}


def test_what_something_else_told_is_believed_where_nothing_is_known() -> None:
    ledger = Ledger()
    ledger.believe(("a/x", "i"), "/i")
    ledger.believe(("a/x", "i"), "/other")
    ledger.believe(("a/x", "j"), "")
    assert write(ledger, {}) == {"a/x": {"i": "/i"}}


def test_where_all_is_too_much_what_was_given_is_kept() -> None:
    ledger = Ledger()
    ledger.recall({"a/before": {"n": "/n"}})
    ledger.offer("a/x", {"i": "/i", "j": "/j"}, ())
    ledger.give("a/x", {"j": "/j"})
    page = ledger.page()
    short = page.shortened(page.merged({}))
    assert short == {"a/before": {"n": "/n"}, "a/x": {"j": "/j"}}
    ledger.written(page, short)
    assert ledger.unwritten("a/x", ["i"])
    assert not ledger.unwritten("a/x", ["j"])


def test_what_changes_while_it_is_written_is_to_be_written_again() -> None:
    ledger = Ledger()
    ledger.give("a/x", {"i": "/one"})
    page = ledger.page()
    ledger.give("a/x", {"i": "/two"})
    ledger.written(page, page.merged({}))
    assert ledger.unwritten("a/x", ["i"])


NAMES = st.sampled_from(["a", "b", "c"])
CLAIMS = st.dictionaries(NAMES, st.sampled_from(["/1", "/2"]))
ENTRIES = st.dictionaries(NAMES, CLAIMS)


@given(ENTRIES, ENTRIES, ENTRIES, st.frozensets(st.tuples(NAMES, NAMES)))
def test_to_write_twice_is_to_write_once(
    served: Entries, others: Entries, found: Entries, dropped: frozenset[tuple[str, str]]
) -> None:
    others = {name: of for name, of in others.items() if name not in served}
    page = Page(served, others, dropped, frozenset())
    assert page.merged(page.merged(found)) == page.merged(found)


class Node(RuleBasedStateMachine):
    """Processes that serve a resource in turn, one of them at a time, and are killed at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.file: Entries = {}
        self.ledger = Ledger()
        self.given: dict[tuple[str, str], str] = {}

    @rule(name=NAMES, claims=CLAIMS)
    def advertises(self, name: str, claims: Mapping[str, str]) -> None:
        self.ledger.offer(name, claims, {i for resource, i in self.given if resource == name})

    @rule(name=NAMES, claims=CLAIMS)
    def gives(self, name: str, claims: Mapping[str, str]) -> None:
        """What nobody holds, once it is written."""
        free = {i: claim for i, claim in claims.items() if (name, i) not in self.given}
        self.ledger.give(name, free)
        self.file = write(self.ledger, self.file)
        self.given |= {(name, i): claim for i, claim in free.items()}

    @rule(name=NAMES)
    def is_taken_out(self, name: str) -> None:
        held = {i: "/unlike" for resource, i in self.given if resource == name}
        self.ledger.leave(name, held, ())

    @rule()
    def is_written(self) -> None:
        self.file = write(self.ledger, self.file)

    @rule(name=NAMES, device_id=NAMES)
    def is_freed(self, name: str, device_id: str) -> None:
        if self.given.pop((name, device_id), None) is not None:
            self.ledger.forget([(name, device_id)])

    @rule()
    def is_killed(self) -> None:
        self.ledger = Ledger()
        self.ledger.recall(self.file)

    @invariant()
    def the_next_one_knows_what_pods_hold(self) -> None:
        for (name, device_id), claim in self.given.items():
            assert self.file[name][device_id] == claim
            assert self.ledger.find((name, device_id)) == claim


TestNode = Node.TestCase
