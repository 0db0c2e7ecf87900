"""The rules, checked and tried by promtool: each alert fires, ends, and stays silent where it is near."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.generate import HERE, every_alert
from harness.prometheus import promtool

RULES = sorted((HERE / "rules").glob("*.yaml"))
TESTS = sorted((HERE / "rules/tests").glob("*.yaml"))


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
async def test_promtool_has_nothing_to_say(path: Path) -> None:
    status, out = await promtool("check", "rules", "--lint=all", "--lint-fatal", path)
    rules = sum(len(group["rules"]) for group in yaml.safe_load(path.read_text())["groups"])
    assert (status, out) == (0, f"Checking {path}\n  SUCCESS: {rules} rules found\n\n")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
async def test_the_rules_do_what_their_tests_say(path: Path) -> None:
    status, out = await promtool("test", "rules", path)
    assert status == 0, out


@functools.cache
def _checks() -> dict[str, list[dict[str, Any]]]:
    """For each alert the moments at which its state is tested, by test."""
    checks: dict[str, list[dict[str, Any]]] = {}
    for path in TESTS:
        for number, test in enumerate(yaml.safe_load(path.read_text())["tests"]):
            for check in test.get("alert_rule_test", []):
                checks.setdefault(check["alertname"], []).append(check | {"test": (path.name, number)})
    return checks


@pytest.mark.parametrize("alert", [alert.name for alert in every_alert()])
def test_each_alert_is_seen_to_fire_to_end_and_to_stay_silent(alert: str) -> None:
    checks = _checks()[alert]
    fires = {check["test"] for check in checks if check["exp_alerts"]}
    assert fires
    assert {check["test"] for check in checks} - fires, "no near miss"
    ended = False
    for test in fires:
        states = [bool(check["exp_alerts"]) for check in checks if check["test"] == test]
        ended = ended or (True in states and states[-1] is False)
    assert ended
    annotated = [expected["exp_annotations"] for check in checks for expected in check["exp_alerts"]]
    assert all(set(found) == {"summary", "description", "runbook_url"} for found in annotated)


def test_every_recording_rule_is_tried() -> None:
    # By name, or through one that is made of it.
    names: set[str] = set()
    made_of: dict[str, set[str]] = {}
    for group in yaml.safe_load((HERE / "rules/recording.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            names.add(rule["record"])
            made_of[rule["record"]] = set(re.findall(r"\b[a-z_]+:\w+:\w+", rule["expr"]))
    tried = {
        name
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for check in test.get("promql_expr_test", [])
        for name in re.findall(r"\b[a-z_]+:\w+:\w+", check["expr"])
        if check["exp_samples"]
    }
    waiting = list(tried)
    while waiting:
        for part in made_of.get(waiting.pop(), set()) - tried:
            tried.add(part)
            waiting.append(part)
    assert names <= tried
    assert all(re.fullmatch(r"[a-z_]+:[a-z_0-9]+:[a-z_0-9]+", name) for name in names)


def test_alerts_are_named_once_and_alike() -> None:
    names = [alert.name for alert in every_alert()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"Devicelens[A-Z][A-Za-z]+", name) for name in names)
