"""Tables at every width: they fit, ids stay apart, and nothing hostile is in them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from exporter.cli.table.draw import cut, lines, table
from exporter.cli.table.fit import Cell, Column, fit, shorten, whole
from exporter.cli.table.terminal import Look
from exporter.cli.table.width import closed, head, padded, tail, tame, width
from exporter.views.wording import spelled
from harness.hostile import CORPUS
from runtime.text import is_hostile

COLUMNS = (
    Column("RESOURCE", drop=4, least=8),
    Column("DEVICE", least=10),
    Column("STATE", drop=2),
    Column("NAMESPACE/POD", least=13),
    Column("CONTAINER", drop=5, least=9),
    Column("SINCE", drop=3),
)


def row(*texts: str, short: str = "") -> tuple[Cell, ...]:
    return (Cell(tame(spelled(texts[0])), short), *(Cell(tame(spelled(text))) for text in texts[1:]))


HOSTILE = [row(*[text] * 6) for text in CORPUS.values()]
GPUS = [
    row(
        *("nvidia.com/gpu", f"GPU-8d1c2a90-4d3e-4b8a-9a55-0e6b8f1d2c{i:02x}", "unhealthy"),
        *("machine-learning/llama-70b-pretraining-0", "trainer", "before 22:31:03Z (10 min)"),
        short="gpu",
    )
    for i in range(16)
]


@pytest.mark.parametrize("room", [*range(20, 132), 160, 200, 250, 300])
@pytest.mark.parametrize("rows", [GPUS, HOSTILE], ids=["gpus", "hostile"])
def test_no_line_is_wider_than_there_is_room(rows: list[tuple[Cell, ...]], room: int) -> None:
    look = Look(terminal=True, colour=False, room=room)
    shown = table(COLUMNS, rows, look)
    for line in lines(shown, look):
        assert width(line.replace("\u200e", "")) <= room
        assert not any(is_hostile(character) for character in line.replace("\u200e", ""))
    names = [column.name for column in shown.columns]
    assert any(name == "DEVICE"[: len(name)] for name in names)
    assert any(name == "NAMESPACE/POD"[: len(name)] for name in names)
    assert bool(cut(shown, look)) is shown.cut


@pytest.mark.parametrize("room", range(20, 300, 7))
def test_ids_that_differ_at_their_end_are_told_apart_at_any_width(room: int) -> None:
    shown = fit(COLUMNS, GPUS, room)
    at = next(i for i, column in enumerate(shown.columns) if column.name.startswith("DEVICE"[:4]))
    assert len({cells[at].text for cells in shown.rows}) == len(GPUS)
    assert all(cells[at].text.endswith(f"c{i:02x}") for i, cells in enumerate(shown.rows))


def test_where_there_is_room_nothing_is_cut() -> None:
    assert fit(COLUMNS, GPUS, 1000) == whole(COLUMNS, GPUS)
    assert cut(fit(COLUMNS, GPUS, 1000), Look(room=1000)) == ""


def test_short_forms_come_before_cuts_and_cuts_before_columns() -> None:
    widths = [max(width(c.name), *(width(r[i].text) for r in GPUS)) for i, c in enumerate(COLUMNS)]
    in_short = fit(COLUMNS, GPUS, sum(widths) + 10 - 6)
    assert in_short.rows[0][0].text == "gpu"
    assert [r[1] for r in in_short.rows] == [r[1] for r in GPUS]
    narrower = fit(COLUMNS, GPUS, 100)
    assert len(narrower.columns) == 6
    assert "…" in narrower.rows[0][1].text
    left_out = fit(COLUMNS, GPUS, 60)
    assert left_out.left_out[:2] == ("RESOURCE", "CONTAINER")
    assert cut(left_out, Look(room=60)).startswith("60 columns do not hold it all: RESOURCE, CONTAINER")


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=12), st.integers(4, 40)
)
def test_shortened_texts_fit_and_short_ones_stay(texts: list[str], room: int) -> None:
    shown = [tame(spelled(text)) for text in texts]
    found = shorten(shown, room)
    for text, word in found.items():
        assert width(word) <= room
        assert (word == text) is (width(text) <= room) or "…" in text


def test_what_differs_in_the_middle_alone_is_told_apart_too() -> None:
    texts = [f"a-long-beginning-{i}-and-a-quite-long-end-too" for i in range(10)]
    assert len(set(shorten(texts, 30).values())) == 10


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp", "Cn", "Co"]), max_size=20))
def test_widths_are_those_of_the_library_that_redraws(text: str) -> None:
    # rich's table is of one Unicode version and Python's of another: what both know is to agree.
    for character in text:
        if unicodedata.east_asian_width(character) in {"W", "F"} or character.isascii():
            assert width(character) == cell_len(character)


@given(st.text(max_size=40), st.integers(0, 30))
def test_heads_and_tails_are_no_wider_than_asked(text: str, limit: int) -> None:
    assert width(head(text, limit)) <= limit
    assert text.startswith(head(text, limit))
    assert width(tail(text, limit)) <= limit
    assert text.endswith(tail(text, limit))


def test_wide_marks_and_turned_texts() -> None:
    assert width("\u6f22\u5b57 a") == 6
    assert width("e\u0301") == 1
    assert padded("\u6f22", 4) == "\u6f22  "
    stacked = tame(CORPUS["combining"])
    assert stacked.count("\u0300") <= 3
    assert "\\u0300" in stacked
    arabic = CORPUS["arabic"]
    assert closed(arabic) == f"\u200e{arabic}\u200e"
    assert closed("gpu-0") == "gpu-0"


def test_a_turned_text_is_closed_on_a_terminal_and_as_it_is_in_a_pipe() -> None:
    rows = [row(*[CORPUS["arabic"]] * 6)]
    piped = list(lines(whole(COLUMNS, rows), Look()))
    assert "\u200e" not in "".join(piped)
    assert "\u200e" in "".join(lines(whole(COLUMNS, rows), Look(terminal=True)))
