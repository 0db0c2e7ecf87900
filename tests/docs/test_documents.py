"""Every page for people: links lead somewhere, commands can be read, names exist, blocks parse.

What a page says of one thing alone is tested beside that thing, or in a module of its own.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from devicelens import main
from exporter.mapping import id_rules
from harness.markdown import FENCE, fences
from harness.prometheus import promtool
from plugin.config.load import load

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
}
RUNBOOKS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted((ROOT / "dashboards/runbooks").glob("*.md"))
}
ALL = PAGES | RUNBOOKS
LANGUAGES = {
    *("console", "json", "promql", "python", "text", "yaml"),
    *("yaml bad", "yaml grafana", "yaml prometheus", ""),  # the last: what a terminal shows
}
# What is no command of this project's, and no concern of these tests.
OTHERS = {
    "curl",
    "docker",
    "git",
    "grep",
    "hostname",
    "htpasswd",
    "kubectl",
    "oc",
    "rm",
    "sqlite3",
    "systemctl",
}
OTHERS_FLAGS = {
    "--collector.ethtool": "node_exporter",
    "--hypothesis-profile": "pytest",
    "--isolation": "buildah",
    "--kubernetes": "DCGM exporter",
}

page = pytest.mark.parametrize("name", PAGES)
any_page = pytest.mark.parametrize("name", ALL)


def prose(text: str) -> str:
    return FENCE.sub("", text)


def spans(text: str) -> list[str]:
    """What is set as code within sentences."""
    return re.findall(r"`([^`]+)`", prose(text))


@cache
def anchors(path: Path) -> frozenset[str]:
    """As GitHub makes them of headings."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", prose(path.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return frozenset(f"{slug}-{n}" if n else slug for slug, times in found.items() for n in range(times + 1))


@any_page
def test_its_links_and_pictures_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(((?!https?://)[^)\s]+)\)", prose(ALL[name])):
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent.joinpath(file).resolve() if file else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@any_page
def test_its_blocks_are_what_they_say(name: str) -> None:
    for language, block in fences(ALL[name]):
        assert language in LANGUAGES
        if language == "json":
            json.loads(block)
        elif language.startswith("yaml"):
            for document in yaml.safe_load_all(block):
                assert isinstance(document, dict | list)


@page
def test_its_configurations_can_be_loaded(name: str) -> None:
    for language, block in fences(PAGES[name]):
        if language == "yaml" and re.match(r"(?:#.*\n)*version:", block):
            if "\nrules:" in block:
                assert id_rules.load_rules(block.encode(), name)
            else:
                assert load(block.encode(), name)


def simple_commands(block: str) -> Iterator[list[str]]:
    """The commands of a console block, word by word; what they print is left out."""
    text = block.replace("\\\n", " ")
    for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        words: list[str] = []
        for word in [*reader, ";"]:
            if set(word) <= set("();<>|&"):
                if words and words != ["source"]:
                    yield words
                words = []
            else:
                words.append(word)


def subcommand(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that these words after `devicelens` name, and the words after it."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, words
        command, rest = found, rest[1:]
    return command, rest


def every_command(command: click.Command = main) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from every_command(found)


FLAGS = {flag for command in every_command() for param in command.params for flag in param.opts} | {"--help"}
VARIABLES = {
    variable
    for command in every_command()
    for param in command.params
    for variable in ([param.envvar] if isinstance(param.envvar, str) else param.envvar or ())
}


def can_be_read(words: list[str]) -> None:
    command, rest = subcommand(words)
    # As --version and --help end.
    with suppress(click.exceptions.Exit), command.make_context("devicelens", rest) as context:
        assert context.params or not command.params


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        variable, given, _ = word.partition("=")
        if given:
            assert f"$({variable}" in makefile, word
        else:
            assert re.search(rf"^{word}:", makefile, re.MULTILINE), word


def check_python(words: list[str]) -> None:
    assert words[0] == "-m"
    if words[1] == "pytest":
        assert all((ROOT / path).exists() for path in words[2:])
    else:
        module = Path(*words[1].split("."))
        assert any((ROOT / top / module).with_suffix(".py").exists() for top in (".", "tests")), words


def check_command(command: list[str]) -> None:
    words = list(dropwhile(lambda word: word == "sudo" or re.match(r"[A-Z_0-9]+=", word), command))
    match words:
        case ["devicelens" | ".venv/bin/devicelens", *rest]:
            can_be_read(rest)
        case ["make", *rest]:
            check_make(rest)
        case ["python" | ".venv/bin/python", *rest]:
            check_python(rest)
        case ["export", given]:
            assert "=" in given
        case _:
            assert set(words[:1]) & OTHERS, command


@any_page
def test_its_commands_can_be_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("plugin.yaml", "web.yaml", "bad.yaml", "answer.list.binpb"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    for language, block in fences(ALL[name]):
        if language != "console":
            continue
        assert block.startswith("$ ")
        for command in simple_commands(block):
            check_command(command)


def program(span: str) -> str:
    """The first word, behind a variable that is set by it."""
    return "".join(re.sub(r'^[A-Z]+="?', "", span).split()[:1])


@any_page
def test_the_commands_and_flags_in_its_sentences_exist(name: str) -> None:
    own = [span for span in spans(ALL[name]) if program(span) not in OTHERS]
    for span in own:
        match span.partition("|")[0].replace("\\", "").split():
            case ["make", *words] if "…" not in span:
                check_make(words)
            case ["devicelens", word, *words] if re.fullmatch(r"[a-z-]+", word):
                command, rest = subcommand([word, *takewhile(str.islower, words)])
                known = {flag for param in command.params for flag in param.opts} | {"--help"}
                given = {part.partition("=")[0] for part in (*rest, *words) if part.startswith("-")}
                assert given <= known, span
            case _:
                pass
    flags = {flag for span in own for flag in re.findall(r"(?<![\w-])--[a-z][a-z.-]*[a-z]", span)}
    assert flags <= FLAGS | OTHERS_FLAGS.keys()


@any_page
def test_the_metrics_that_it_names_exist(name: str) -> None:
    exist = set(re.findall(r"^\| `(devicelens_\w+)` \|", PAGES["docs/metrics.md"], re.MULTILINE))
    named = set(re.findall(r"(?<![:\w.$])devicelens_[a-z0-9_]+(?![\w…*:.])", ALL[name]))
    parts = {f"{family}{part}" for family in exist for part in ("_bucket", "_sum", "_count")}
    assert named <= exist | parts


@page
def test_the_variables_that_it_names_exist(name: str) -> None:
    for variable in set(re.findall(r"DEVICELENS_[A-Z0-9_]*[A-Z0-9]", PAGES[name])):
        files = (ROOT / "Makefile", *(ROOT / "tests").rglob("*.py"))
        assert variable in VARIABLES or any(
            re.search(rf"\b{variable}\b", file.read_text()) for file in files if file != Path(__file__)
        ), variable


@any_page
def test_the_files_that_it_names_are_there(name: str) -> None:
    """Paths from the project's root, except for what `make` writes."""
    folders = "|".join(
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name not in {"build", "dist"}
    )
    for span in spans(ALL[name]):
        if re.fullmatch(rf"(?:{folders})/[\w./*-]+", span) and "NAME" not in span:
            assert any(ROOT.glob(span.rstrip("/"))), span


@any_page
def test_it_is_of_no_one_machine(name: str) -> None:
    assert not re.findall(r"(?<![\w.])/(?:work|home|root|Users)/\S*", ALL[name])
    assert not re.findall(r"\b(?:TODO|FIXME|XXX)\b", ALL[name])


async def test_the_queries_shown_are_promql(tmp_path: Path) -> None:
    """A rules file of them, as promtool reads it."""
    shown = [block for text in ALL.values() for language, block in fences(text) if language == "promql"]
    assert len(shown) > 20
    rules: list[dict[str, Any]] = [
        {"record": f"shown:query:{number}", "expr": query} for number, query in enumerate(shown)
    ]
    path = tmp_path / "shown.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]}))
    status, out = await promtool("check", "rules", path)
    assert status == 0, out
    assert f"{len(shown)} rules found" in out
