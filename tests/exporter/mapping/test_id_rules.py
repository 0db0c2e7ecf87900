"""exporter.mapping.device_ids: rules of the user's own, and what is refused in them."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.device_ids import (
    BUILT_IN_RULES,
    LONGEST,
    WHOLE,
    DeviceKind,
    IdReader,
    IdReading,
    load_rules,
    slow,
)
from runtime.config_file import ConfigError

FILE = r"""
version: 1
rules:
  - name: acme-share
    resource: acme\.example/accelerator.*
    pattern: (?P<board>acc\d+)-slot(?P<replica>\d+)
    parent: "/dev/{board}"
  - name: acme-tile
    pattern: (?P<parent>acc\d+)\.(?P<partition>tile\d+)
    kind: partition
  - name: addresses
    pattern: fe80::[0-9a-f]+
    kind: whole
"""


def test_the_users_rules_come_first_and_the_built_in_ones_after_them() -> None:
    reader = IdReader([*load_rules(FILE.encode(), "rules.yaml"), *BUILT_IN_RULES])
    assert reader("acc0-slot3", "acme.example/accelerator-x") == IdReading(
        "acme-share", "/dev/acc0", "3", DeviceKind.REPLICA
    )
    assert reader("acc0-slot3", "other.example/x") == WHOLE
    assert reader("acc1.tile2") == IdReading("acme-tile", "acc1", "", DeviceKind.PARTITION, "tile2")
    assert reader("fe80::1") == IdReading("addresses")
    assert reader("GPU-1::1") == IdReading("replica", "GPU-1", "1", DeviceKind.REPLICA)


def test_a_file_without_rules_changes_nothing() -> None:
    assert load_rules(b"version: 1\nrules: []\n", "rules.yaml") == ()


def test_an_id_longer_than_any_real_one_is_not_tried() -> None:
    (anything,) = load_rules(
        b"version: 1\nrules:\n  - {name: any, pattern: '.+', kind: whole}\n", "rules.yaml"
    )
    assert anything.read("x" * LONGEST) == IdReading("any")
    assert anything.read("x" * (LONGEST + 1)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\nrules: []", "f:1: version: found 2, expected 1"),
        ("version: 1", "f:1: expected the key 'rules', which is missing"),
        (
            "version: 1\nrules:\n- {nam: x}",
            "f:3: rules[0].nam: found an unknown key 'nam', did you mean 'name'?",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: (",
            "f:4: rules[0].pattern: '(' is not a regular expression: missing ), unterminated subpattern",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  resource: '['",
            "f:5: rules[0].resource: '[' is not a regular expression: unterminated character set",
        ),
        ("version: 1\nrules:\n- name: x\n  pattern: x", "rules[0].parent: 'x' has no group (?P<parent>…)"),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  parent: '{y}'",
            "f:5: rules[0].parent: 'x' has no group (?P<y>…)",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  parent: y\n  kind: whole",
            "f:5: rules[0].parent: found 'y', but a whole device has no parent: leave it out",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  kind: slice",
            "f:5: rules[0].kind: found 'slice', expected one of 'partition', 'replica', 'whole'",
        ),
        (
            "version: 1\nrules:\n- {name: x, pattern: x, kind: whole}\n- {name: x, pattern: x, kind: whole}",
            "f:4: rules[1].name: found 'x': a rule above or a built-in one has this name",
        ),
        (
            "version: 1\nrules:\n- {name: mig, pattern: x, kind: whole}",
            "a rule above or a built-in one",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: (?P<parent>(a+)+)",
            "f:4: rules[0].pattern: found '(?P<parent>(a+)+)': a repetition or a choice within a repetition",
        ),
        ("version: 1\nrules:\n- name: x\n  pattern: x\n  resource: (a|aa)*", "f:5: rules[0].resource: found"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_rules(text.encode(), "f")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        *(r.pattern.pattern for r in BUILT_IN_RULES),
        *(r.resource.pattern for r in BUILT_IN_RULES if r.resource is not None),
        r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d-(?P<replica>\d+)",
        r"(?:\d+\.){3}\d+",
        r"[a-z(+|]+",
        r"\(a+\)+\|*",
        r"[]a]+",
        r"(?:one|two|three)-\d{1,3}",
        r"a{,}",
    ],
)
def test_what_takes_no_time_is_let_pass(expression: str) -> None:
    assert slow(expression) == ""


@pytest.mark.parametrize(
    "expression",
    [
        *("(a+)+", "(a*)*b", "(?:a|aa)+", "(a|a)*", "((a*))*", r"(\w+-){2,5}", "(a{1,3}){4,}", "(a{,}){,}"),
        *(
            "(?P<parent>(x+x+)+)y",
            "(?>a+)+",
            "(a?)+",
            ".*.*.*.*.*x",
            r"(?:\d+\.){9}\d+",
            "a?" * 40 + "a" * 40,
        ),
        *("(?i)x", "(?s:.)", "(a?){30}"),
    ],
)
def test_what_could_take_for_ever_is_refused(expression: str) -> None:
    re.compile(expression)
    assert slow(expression)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text("ab|()?+*{},1[]\\^.", max_size=24), st.sampled_from(["a", "b", "ab", "1a"]))
def test_whatever_is_let_pass_takes_little_time_on_any_id(expression: str, piece: str) -> None:
    try:
        compiled = re.compile(expression)
    except (re.error, OverflowError, RecursionError, FutureWarning):
        slow(expression)  # says something or nothing, but says it
        return
    if slow(expression):
        return
    began = time.thread_time()
    compiled.fullmatch((piece * LONGEST)[: LONGEST - 1] + "!")
    assert time.thread_time() - began < 1
