"""What is in git is what the code makes, and names what the two processes expose."""

import re

from dashboards.generate import HERE, every_alert, generated
from dashboards.links import Addresses
from harness.metrics_reference import exporter_text, families, plugin_text

OURS = re.compile(r"\b(?<!:)devicelens_[a-z_]+\b(?!:)")


def test_make_dashboards_changes_nothing() -> None:
    for path, text in generated(Addresses()).items():
        assert path.read_text() == text, f"{path.name} is not what the code makes: make dashboards"


def test_nothing_else_lies_about() -> None:
    files = set(generated(Addresses()))
    for pattern in ("grafana/*", "rules/*.yaml"):
        assert {path for path in HERE.glob(pattern) if path.name != ".lint"} <= files


def _known() -> set[str]:
    known: set[str] = set()
    for family in (*families(exporter_text()), *families(plugin_text())):
        known.add(family.name)
        if family.type == "histogram":
            known |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
    return known


def test_only_families_that_are_exposed_are_named() -> None:
    made = set(generated(Addresses())) - {HERE.parent / "docs/dashboards.md"}
    books = set((HERE / "runbooks").glob("*.md"))
    known = _known()
    for path in made | books:
        named = set(OURS.findall(path.read_text()))
        assert named or path in books, path
        assert named <= known, path


def test_every_kind_of_anomaly_in_an_alert_exists() -> None:
    text = (HERE.parent / "docs/messages.md").read_text().split("\n## What is wrong\n")[1]
    kinds = set(re.findall(r"^\| `(\w+)` \| ", text.split("\n## ")[0], re.MULTILINE))
    alerts = "\n".join(alert.expr for alert in every_alert())
    named = set(re.findall(r'devicelens_anomaly_info\{kind="(\w+)"', alerts))
    assert named
    assert named <= kinds
