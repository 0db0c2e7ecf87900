"""What the README says is so: names of metrics, flags, commands and addresses, and its configuration."""

import re
from pathlib import Path

import click
import pytest

from devicelens import COMMANDS
from devicelens import main as front_door
from exporter.history.archive import Condition
from exporter.mapping.state import Board, State
from exporter.metrics.exporter import Metrics
from exporter.metrics.families import HistoryFamilies
from exporter.web.app import build
from exporter.web.site import Site
from plugin.config import model
from plugin.config.load import load
from runtime.exposition import Format
from runtime.http import Traffic, WebFamilies

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TABLE_ROW = re.compile(r"^\| (`devicelens_.*?) \|", re.MULTILINE)
NAMES = re.compile(r"`(devicelens_[a-z_]+)`")


def _metrics() -> Metrics:
    """The exposition of a board that has just been written."""
    board = Board()
    board.publish(State(generation=1, taken_at=0.0))
    metrics = Metrics(board, node="n", version="v", stale_after=60.0, clock=lambda: 0.0)
    metrics.register(HistoryFamilies(lambda: Condition(earliest=0.0)))
    metrics.register(WebFamilies("devicelens", Traffic()))
    return metrics


async def test_every_family_is_in_the_table_and_the_table_names_no_other() -> None:
    metrics = _metrics()
    try:
        document = (await metrics.document(Format.TEXT, compress=False)).decode()
    finally:
        metrics.close()
    families = re.findall(r"^# TYPE (\S+)", document, re.MULTILINE)
    # The process switches these off (exporter.main); prometheus_client has one switch for all of its users.
    served = {family for family in families if not family.endswith("_created")}
    told = {name for row in TABLE_ROW.findall(README) for name in NAMES.findall(row)}
    assert told == served


def _command(name: str) -> click.Command:
    found = front_door.get_command(click.Context(front_door), name)
    assert found is not None
    return found


def _flags(name: str) -> set[str]:
    return {flag for option in _command(name).params for flag in option.opts if flag.startswith("--")}


def test_the_exporter_s_flags_are_in_its_table_and_the_table_names_no_other() -> None:
    rows = re.findall(r"^\| (`--.*?) \|", README, re.MULTILINE)
    told = {flag for row in rows for flag in re.findall(r"`(--[a-z.-]+)`", row)}
    assert told == _flags("exporter") - {"--help"}


@pytest.mark.parametrize("flag", ["--socket", "--url", "--pod", "-o"])
def test_what_who_is_shown_with_exists(flag: str) -> None:
    assert any(flag in option.opts for option in _command("who").params)


def test_every_command_shown_exists() -> None:
    shown = set(re.findall(r"^\$ (?:sudo )?devicelens (\w+)", README, re.MULTILINE))
    assert shown
    assert shown <= COMMANDS.keys()
    targets = set(re.findall(r"^\$ make (\w+)", README, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_its_configurations_load() -> None:
    configurations = [
        text for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if text.startswith("version:")
    ]
    assert configurations
    for text in configurations:
        assert load(text.encode(), "README.md")


async def test_every_address_shown_is_served() -> None:
    metrics = _metrics()
    site = Site(
        board=Board(),
        node="n",
        stale_after=60.0,
        poll_interval=5.0,
        clock=lambda: 0.0,
        metrics=metrics,
        triggers=lambda: (),
        version="v",
    )
    served = {resource.canonical for resource in build(site).router.resources()}
    metrics.close()
    row = next(line for line in README.splitlines() if line.startswith("| `/api/v1/devices`"))
    names = re.findall(r"`([a-z]+)`", row.split("|")[1])
    assert names
    assert {f"/api/v1/{name}" for name in names} <= served
    assert {"/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/devices", "/api/v1/events"} <= served
    cells = re.findall(r"^\| (`/[^|]*) \|", README, re.MULTILINE)
    for address in (address for cell in cells for address in re.findall(r"`(/[^`]*)`", cell)):
        fixed, template, _ = address.partition("{")
        assert address in served or (template and f"{fixed}{{path}}" in served), address


def test_every_file_and_folder_it_points_to_is_there() -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    folders = re.findall(r"^\| `([a-z]+(?:/|\.py))` \|", README, re.MULTILINE)
    assert len(folders) > 5
    for path in [*links, *folders]:
        assert (ROOT / path).exists(), path


def test_the_presets_and_sources_that_it_names_are_those_that_there_are() -> None:
    table = README.split("| preset | stands in for |")[1].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(path.stem for path in (ROOT / "plugin" / "presets").glob("*.yaml"))
    sources = re.findall(r"`([a-z]+)`", README.split("Sources are ")[1].split(". Texts")[0])
    assert sorted(sources) == sorted(model.Source.__struct_fields__)


def test_the_shortest_way_in_is_that_of_docs_install() -> None:
    """Where every configuration and command is tried (tests/deploy/test_docs.py)."""
    install = (ROOT / "docs" / "install.md").read_text()
    section = README.split("\n## Install on a cluster\n")[1].split("\n## ")[0]
    shown = re.findall(r"```(?:console|yaml)\n(.*?)```", section, re.DOTALL)
    assert len(shown) == 3
    for line in "".join(shown).splitlines():
        assert f"{line}\n" in install, line
