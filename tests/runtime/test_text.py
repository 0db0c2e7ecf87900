"""runtime.text, and the version: nothing from outside moves a cursor, hides or turns around."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devicelens import version
from runtime import __version__
from runtime.text import ID_LIMIT, is_hostile, shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("gpu-0", "gpu-0"),
        ("größe 東京", "größe 東京"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x00\x7f\x85", r"\x00\x7f\x85"),
        ("user\u202etxt.exe", r"user\u202etxt.exe"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_hostile_characters_are_spelled_out_and_others_kept(text: str, shown: str) -> None:
    assert visible(text) == shown


@settings(max_examples=60)
@given(st.text(st.characters(exclude_categories=())))
def test_visible_text_is_one_line_that_any_terminal_can_print(text: str) -> None:
    shown = visible(text)
    assert not any(is_hostile(character) for character in shown)
    assert len(shown.splitlines()) <= 1
    shown.encode()
    if not any(is_hostile(character) for character in text):
        assert shown == text


@pytest.mark.parametrize("character", ["x", "é", "\n"])
def test_a_text_that_is_too_long_is_cut_and_says_so(character: str) -> None:
    assert visible(character * 11, limit=10) == visible(character * 9) + "…"
    assert visible(character * 10, limit=10) == visible(character * 10)


@given(st.text(), st.integers(4, 200))
def test_a_shortened_text_keeps_its_beginning_and_its_end(text: str, limit: int) -> None:
    shown = shortened(text, limit)
    if len(text) <= limit:
        assert shown == text
        return
    head, _, tail = shown.partition("…") if "…" not in text else (shown[: limit - limit // 3 - 1], "", "")
    assert len(shown) == limit
    assert text.startswith(head)
    assert text.endswith(tail)


def test_ids_of_real_devices_are_never_shortened() -> None:
    mig = "MIG-3f3bbbd2-9f0c-5c9b-9f5f-4d2f5d0f9a11::12"
    assert shortened(mig) == mig
    assert len(shortened("GPU-" + "0" * 4096)) == ID_LIMIT


@pytest.mark.parametrize("revision", ["0123abc", "a" * 40, "a" * 40 + "-dirty"])
def test_an_images_revision_is_shown_with_the_version(revision: str) -> None:
    assert version({"DEVICELENS_REVISION": revision}) == f"{__version__} (revision {revision})"


@pytest.mark.parametrize("revision", ["", "main", "\x1b[31m0123abc", "abc\n", "A" * 40])
def test_a_malformed_revision_is_not_shown(revision: str) -> None:
    assert version({"DEVICELENS_REVISION": revision}) == __version__
    assert version({}) == __version__
