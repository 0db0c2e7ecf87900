"""The section "Dry run" of docs/configuration.md names the document's fields, and no others."""

import inspect
import re
from pathlib import Path

from click.testing import CliRunner
from msgspec import Struct

from devicelens import main
from plugin.discover import dry_run

TEXT = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
SECTION = TEXT.split("\n## Dry run\n")[1].split("\n## ")[0]


def test_every_field_is_named_and_no_other() -> None:
    structs = [
        struct
        for _, struct in inspect.getmembers(dry_run, inspect.isclass)
        if issubclass(struct, Struct) and struct.__module__.startswith("plugin.discover.")
    ]
    fields = {field for struct in structs for field in struct.__struct_fields__}
    rows = [row for row in SECTION.splitlines() if row.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert named == fields


def test_the_shown_answer_is_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "etc/colas").mkdir(parents=True)
    for name in ("a", "b2", "b10"):
        (tmp_path / "etc/colas" / name).touch()
    shown = SECTION.split("```console\n$ devicelens ")[1].split("```")[0]
    command, _, answer = shown.partition("\n")
    result = CliRunner().invoke(main, [*command.split(), "--host-root", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, answer)
