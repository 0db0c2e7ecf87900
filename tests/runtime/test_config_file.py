import math

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.config_file import ConfigError, parse

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff0123456789"), max_size=20
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abcdefgh", min_size=1, max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def refusal(content: bytes) -> ConfigError | None:
    try:
        parse(content, "x")
    except ConfigError as error:
        return error
    return None


@settings(max_examples=40)
@given(plain)
@example(0.0005000000237487257)  # as many decimal places as a float is written with
@example(0.00012345678901234567)
def test_the_output_of_a_yaml_library_is_read_back(value: object) -> None:
    # Text without digits: `1e3` and `0o7` are text to YAML 1.1, and numbers here.
    text = yaml.safe_dump(value, allow_unicode=True)
    read = parse(text.encode(), "x").root.plain()
    assert read == value or (
        isinstance(value, float) and isinstance(read, float) and math.isclose(read, value)
    )


@settings(max_examples=60)
@given(
    st.binary(max_size=200)
    | st.text("{}[]:,&*!|>'\"%@`#-? \nab1", max_size=80).map(lambda text: text.encode())
)
def test_any_bytes_are_a_document_or_a_clear_error(content: bytes) -> None:
    error = refusal(content)
    assert error is None or (str(error).startswith("x") and str(error).isprintable())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in ("off", "no", "yes", "on", "1:30", "1_000", "2026-11-20")),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("~", None),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("-.inf", -math.inf),
    ],
)
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    assert parse(f"a: {text}".encode(), "x").root.plain() == {"a": value}


def test_keys_items_and_missing_values_have_lines() -> None:
    document = parse(b"a:\n  b: 1\n  c:\n    - x\n    - y\n", "x")
    assert document.line(("a",)) == 1
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1)) == 5
    assert document.line(("a", "d")) == 2
    assert document.line(("a", "c", 7, "z")) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x:1: found an empty file, expected a configuration"),
        (b"a: 1\n---\nb: 2", "x:2: found a second document ('---'), expected one document a file"),
        (b"\na: *b", "x:2: a: alias *b has no anchor before it"),
        (b"a: !!int 1", "x:1: a: found the tag tag:yaml.org,2002:int, expected a plain value"),
        (b"b:\n  <<: {a: 1}", "x:2: b: found a merge key (<<), which this language does not have"),
        (b"a: 1\na: 2", "x:2: a: found the key 'a' a second time"),
        (b"? [a]\n: 1", "x:1: found a key that is not plain text"),
        (b"[" * 40 + b"]" * 40, "x:1: found more than 32 levels of nesting"),
        (b"a: 1\nb: \xff", "x:2: found byte 0xff, expected UTF-8"),
        (b"a: 1\nb: \x01", "x:2: found character U+0001, which YAML does not allow"),
        (b"a" * 300_000, "x: found 300000 bytes, expected at most 262144"),
    ],
)
def test_a_file_that_is_no_plain_document_is_refused_with_its_line(content: bytes, message: str) -> None:
    assert str(refusal(content)) == message


def test_an_alias_counts_with_what_it_expands_to() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 6)]
    assert "found more than 50000 values, aliases expanded" in str(refusal("\n".join(lines).encode()))


def test_a_byte_order_mark_is_no_part_of_the_document() -> None:
    assert parse(b"\xef\xbb\xbfa: 1", "x").root.plain() == {"a": 1}
