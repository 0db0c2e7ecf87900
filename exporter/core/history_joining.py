"""Which holdings are the same: from one look to the next, and in the accounts of two runs, of which one left
off before the other or went on beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from exporter.core.history import Certainty, Facts, HoldingKey, Row, between, ended


def joined(stored: Iterable[Row], own: Iterable[Row], until: float | None, first: float) -> Iterator[Row]:
    """The rows of both, each holding once. What is new among them has the number 0.

    `stored` were open when the other run last looked, at `until` (None: it never did); `own` are all of this
    run's, which first looked at `first`.
    """
    unclaimed: dict[HoldingKey, list[Row]] = {}
    for row in sorted(own, key=lambda row: row.low):
        unclaimed.setdefault(row.key, []).append(row)
    for row in stored:
        mine = _continuation(row, unclaimed.get(row.key, ()), until)
        if mine is None:
            last = max(first, until or 0.0)
            gone = between(last if until is None else until, last, Certainty.WHILE_DOWN)
            yield ended(row, row.missed or gone)
        else:
            unclaimed[row.key].remove(mine)
            yield _joined(row, mine, apart=until is None or until < first)
    for rows in unclaimed.values():
        for row in rows:
            if until is not None and row.end is not None and (row.start.not_after or 0.0) <= until:
                # The other saw it too, and has not got it open: it has recorded the end.
                continue
            start = row.start
            if start.certainty is Certainty.HELD_ALREADY and until is not None:
                start = between(until, first, Certainty.WHILE_DOWN)
            yield replace(row, id=0, start=start)


def _continuation(row: Row, own: Sequence[Row], until: float | None) -> Row | None:
    """Which of this run's own rows of the same name goes on with `row`, that was open at `until`."""
    for mine in own:
        beside = until is not None and mine.low <= until
        known = {uid for uid in (row.facts.uid, mine.facts.uid) if uid}
        if (mine.start.certainty is Certainty.HELD_ALREADY or beside) and len(known) < 2:
            return mine
    return None


def _joined(row: Row, mine: Row, *, apart: bool) -> Row:
    """`row` going on as this run's own `mine`; `apart`: nobody looked for a while in between."""
    facts = Facts(*(new or old for new, old in zip(mine.facts, row.facts, strict=True)))
    confirmed = bool(row.facts.uid) and row.facts.uid == mine.facts.uid
    assumed = row.assumed or mine.assumed or (apart and not confirmed)
    whole = replace(row, facts=facts, assumed=assumed, missed=None)
    return whole if mine.end is None else ended(whole, mine.end)


def paired(
    rows: Sequence[Row], facts: Sequence[Facts]
) -> tuple[list[tuple[Row, Facts]], list[Row], list[Facts]]:
    """Which row goes on as what, which rows have no successor, and what is new.

    The same uid is the same pod. A uid that is not known, on either side, contradicts nothing; but with
    several pods of one name nothing tells which is which (exporter.core.diff has the same rule).
    """
    gone, new = list(rows), list(facts)
    pairs: list[tuple[Row, Facts]] = []
    for row in rows:
        match = next((fact for fact in new if fact.uid == row.facts.uid), None)
        if match is not None:
            pairs.append((row, match))
            gone.remove(row)
            new.remove(match)
    if len(gone) == len(new) == 1 and not (gone[0].facts.uid and new[0].uid):
        return [*pairs, (gone[0], new[0])], [], []
    return pairs, gone, new
