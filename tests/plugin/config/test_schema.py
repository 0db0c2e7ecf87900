"""The JSON Schema agrees with the decoder: it accepts what loads, and refuses what does not fit the model."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from devicelens import main
from harness.markdown import fences
from harness.reference import DOCUMENT, whole
from plugin.config.load import decoded, expand, load
from plugin.presets import PRESETS
from runtime.config_file import ConfigError, parse

COMMITTED = Path(__file__).parents[3] / "docs/plugin.schema.json"
SCHEMA = json.loads(COMMITTED.read_text())
PRESET_TEXTS = [path.read_bytes() for path in PRESETS.values()]
VALIDATOR = Draft202012Validator(SCHEMA)
EXAMPLES = [whole(text) for kind, text in fences(DOCUMENT.read_text()) if kind == "yaml"]


def plain(content: bytes) -> Any:
    return parse(content, "x").root.plain()


def errors(content: bytes) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(plain(content))]


def loads(content: bytes) -> bool:
    try:
        load(content, "x")
    except ConfigError:
        return False
    return True


def fits_the_model(content: bytes) -> bool:
    try:
        decoded(expand(parse(content, "x"), PRESETS))
    except ConfigError:
        return False
    return True


def test_the_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_committed_schema_is_the_one_that_the_model_makes() -> None:
    made = CliRunner().invoke(main, ["check", "--schema"])
    assert made.exit_code == 0
    assert COMMITTED.read_text() == made.stdout, "devicelens check --schema > docs/plugin.schema.json"


@pytest.mark.parametrize("content", [*EXAMPLES, *PRESET_TEXTS])
def test_every_example_and_preset_is_valid(content: bytes) -> None:
    assert errors(content) == []


def test_every_key_has_a_description_for_editors() -> None:
    for name, definition in SCHEMA["$defs"].items():
        assert definition["description"], name
        for key, written in definition["properties"].items():
            assert written.get("description"), f"{name}.{key}"


HEAD = "version: 1\nresources:\n  - name: example.com/x\n    discover: [{glob: {paths: [/dev/x]}}]\n"


@pytest.mark.parametrize(
    "content",
    [
        "version: 2\nresources: [{preset: cola}]",
        "version: 1\nresources: [{preset: colla}]",
        "version: 1\nresources: [{of: x}]",
        "version: 1\nresources: [{preset: cola, share: {replica: 1}}]",
        "version: 1\nresources: [{name: a.b/c}]",
        HEAD.replace("{paths: [/dev/x]}", "{paths: [/dev/x]}, files: {directory: /x}"),
        HEAD.replace("{glob: {paths: [/dev/x]}}", "{}"),
        HEAD.replace("example.com/x", "camera"),
        HEAD + "    numa: true",
        HEAD + "    health: [{exists: /x, carrier: eth0}]",
        HEAD + "    health: [{exists: /x, interval: soon}]",
        HEAD + "    allocate: {env: {1A: x}}",
        HEAD + "    allocate: {files: [{host: /x, container: /y, content: z, mode: rw}]}",
        HEAD + "    share:",
    ],
)
def test_schema_and_decoder_refuse_the_same(content: str) -> None:
    assert errors(content.encode()) != []
    assert not loads(content.encode())


VALUES: list[Any] = [
    *(None, True, 7, -1, 2.5, 0, "text", "/x", "5s", "", "a.b/c", "r"),
    *([], {}, ["a"], [1], {"a": "b"}),
]


def spots(value: Any) -> list[tuple[Any, Any]]:
    """(container, key or index) of everything in a document."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += spots(value[key])
    return found


def mutate(document: Any, data: st.DataObject) -> None:
    container, key = data.draw(st.sampled_from(spots(document)), label="place")
    match data.draw(st.sampled_from(["replace", "remove", "rename", "add"]), label="change"):
        case "replace":
            container[key] = deepcopy(data.draw(st.sampled_from(VALUES), label="value"))
        case "remove":
            del container[key]
        case "rename" if isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)
        case _ if isinstance(container, dict):
            other = data.draw(st.sampled_from(["share", "health", "glob", "exists", "paths", "zzz"]))
            container[other] = deepcopy(data.draw(st.sampled_from(VALUES)))
        case _:
            container.append(deepcopy(data.draw(st.sampled_from(VALUES))))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_schema_and_the_decoder_agree_on_mutated_documents(data: st.DataObject) -> None:
    document = deepcopy(plain(data.draw(st.sampled_from([*EXAMPLES, *PRESET_TEXTS]))))
    for _ in range(data.draw(st.integers(1, 2))):
        if not isinstance(document, dict) or not document:
            break
        mutate(document, data)
    content = json.dumps(document, ensure_ascii=False).encode()
    found = errors(content)
    if loads(content):
        assert found == []
    if not found and '"preset"' not in content.decode():
        # Beside a preset a key may be missing or empty, as far as the preset has it: that needs merging.
        assert fits_the_model(content)
