"""exporter.web.assets: files named by their content, and modules that import one another by those names."""

import gzip
import re
from pathlib import Path

import pytest

from exporter.web.assets import Assets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page.js").write_text('import { a } from "./a.js";\nimport { b } from "./b.js";\n')
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b;\n')
    (tmp_path / "b.js").write_text("export const b = 1;\n")
    (tmp_path / "notes.txt").write_text("not served")
    return tmp_path


def test_imports_of_a_module_have_the_served_names(folder: Path) -> None:
    assets = Assets(folder)
    page = assets.named("page.js")
    imported = re.findall(r'from "\./([^"]+)"', page.plain.decode())
    assert [f"/static/{name}" for name in imported] == [assets.address("a.js"), assets.address("b.js")]
    assert gzip.decompress(page.gzipped) == page.plain


def test_a_change_of_an_imported_module_changes_all_addresses(folder: Path) -> None:
    before = Assets(folder)
    (folder / "b.js").write_text("export const b = 2;\n")
    after = Assets(folder)
    for name in ("page.js", "a.js", "b.js"):
        assert before.address(name) != after.address(name), "else a browser would keep the old one"


def test_modules_import_modules_that_exist() -> None:
    assets = Assets()
    for name in ("devicelens.js", "morph.js", "times.js", "copy.js", "say.js", "changes.js", "address.js"):
        for imported in re.findall(r'from "([^"]+)"', assets.named(name).plain.decode()):
            assert re.fullmatch(r"\./[a-z]+\.[0-9a-f]{12}\.js", imported)


def test_an_unknown_file_has_no_address(folder: Path) -> None:
    with pytest.raises(KeyError):
        Assets(folder).address("notes.txt")
