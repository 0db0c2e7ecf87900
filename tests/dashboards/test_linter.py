"""The rules of grafana/dashboard-linter, and more of the kind. Exceptions are in grafana/.lint.

Named as that tool names them; it wants Go and the network, which not every machine that runs these tests has.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dashboards.generate import HERE

BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "grafana").glob("*.json"))}
SHOWN = {"stat", "timeseries", "gauge", "table", "bargauge", "state-timeline"}
# Those of Grafana's units that are used here.
UNITS = {"short", "percentunit", "s", "dtdurations", "dateTimeFromNow", "bytes", "Bps", "cps"}
GLOBALS = {"__rate_interval", "__url_time_range", "__data", "__field", "__all"}

board = pytest.mark.parametrize("name", BOARDS)


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in BOARDS[name]["panels"] if panel["type"] != "row"]


def variables(name: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in BOARDS[name]["templating"]["list"]}


def queries(name: str) -> Iterator[tuple[str, str]]:
    for panel in panels(name):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def links(value: Any) -> Iterator[str]:
    """Every url below a value."""
    if isinstance(value, dict):
        if isinstance(value.get("url"), str):
            yield value["url"]
        for below in value.values():
            yield from links(below)
    elif isinstance(value, list):
        for below in value:
            yield from links(below)


def test_exceptions_have_reasons_and_are_of_rules_that_are_known() -> None:
    exceptions = yaml.safe_load((HERE / "grafana/.lint").read_text())
    assert set(exceptions) == {"exclusions"}
    assert set(exceptions["exclusions"]) == {
        "template-job-rule",
        "template-instance-rule",
        "target-job-rule",
        "target-instance-rule",
    }
    assert all(len(rule["reason"]) > 40 for rule in exceptions["exclusions"].values())


@board
def test_dashboards_are_uneditable_with_stable_uid_title_and_tag(name: str) -> None:
    assert BOARDS[name]["editable"] is False
    assert BOARDS[name]["uid"] == f"devicelens-{name}"
    assert BOARDS[name]["title"].startswith("devicelens / ")
    assert BOARDS[name]["tags"] == ["devicelens"]
    assert BOARDS[name]["description"]


@board
def test_template_rules(name: str) -> None:
    """Rules template-datasource, template-on-time-change-reload, and template-label-promql."""
    found = variables(name)
    (source,) = [v for v in found.values() if v["type"] == "datasource"]
    assert (source["name"], source["label"], source["query"]) == ("datasource", "Data source", "prometheus")
    for variable in found.values():
        if variable["type"] == "query":
            assert variable["refresh"] == 2
            assert re.fullmatch(r"(label_values|query_result)\(.+\)", variable["query"])
            assert variable["datasource"]["uid"] == "$datasource"
        if variable.get("multi"):
            assert (variable["includeAll"], variable["allValue"]) == (True, ".*")
    assert found["cluster"]["multi"]


@board
def test_panel_rules(name: str) -> None:
    """Rules panel-datasource, panel-title-description, panel-units, panel-no-targets; a text for no data."""
    for panel in panels(name):
        title, field = panel["title"], panel["fieldConfig"]
        assert title
        assert panel["type"] in SHOWN, title
        assert panel["description"].endswith("."), title
        assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}
        assert panel["targets"], title
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        assert field["defaults"]["noValue"], title
        properties = [prop for override in field["overrides"] for prop in override["properties"]]
        units = {prop["value"] for prop in properties if prop["id"] == "unit"}
        assert units | {field["defaults"]["unit"]} <= UNITS, title


@board
def test_target_rate_interval_rule(name: str) -> None:
    for title, expr in queries(name):
        for function, window in re.findall(r"(\w+)\([^()]*\{?[^()]*\}?\[([^\]]+)\]\)", expr):
            if function in {"rate", "irate", "increase"}:
                assert window == "$__rate_interval", title


@board
def test_target_counter_agg_rule(name: str) -> None:
    for title, expr in queries(name):
        for before, _ in re.findall(r"(\w*\(?)\b(\w+_total)\b", expr):
            assert before in {"rate(", "increase("}, f"{title}: {expr}"


@board
def test_variables_are_known_and_quoted_so_that_grafana_escapes_them(name: str) -> None:
    known = set(variables(name))
    texts = [*(expr for _, expr in queries(name)), *(str(v.get("query")) for v in variables(name).values())]
    for text in texts:
        for match in re.finditer(r"\$\{?(\w+)(:\w+)?", text):
            assert match[1] in known | GLOBALS | {"1"}, text
            assert match[2] is None, "a format would take Grafana's own escaping away"
        for operator, variable in re.findall(r'(=~|=|!=|!~)"\$(\w+)"', text):
            several = bool(variables(name)[variable].get("multi"))
            assert operator == ("=~" if several else "="), text


@board
def test_links_keep_source_clusters_and_time_and_name_variables_that_are_there(name: str) -> None:
    for url in links(BOARDS[name]["panels"]):
        for variable in re.findall(r"\$\{(\w+)", url):
            assert variable in set(variables(name)) | GLOBALS, url
        if url.startswith("/d/"):
            target = re.match(r"/d/devicelens-(\w+)/devicelens-\1\?", url)
            assert target, url
            assert "${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}" in url
            assert set(re.findall(r"&var-(\w+)=", url)) <= set(variables(target[1])), url
        else:
            assert re.match(r"\$\{page\}/", url), url


@board
def test_links_to_others_at_the_top_keep_variables_and_time(name: str) -> None:
    (others, *pages) = BOARDS[name]["links"]
    assert (others["type"], others["tags"], others["includeVars"], others["keepTime"]) == (
        *("dashboards", ["devicelens"]),
        *(True, True),
    )
    assert all(page["targetBlank"] for page in pages)
    assert bool(pages) == ("page" in variables(name))


@board
def test_links_of_rows_name_fields_that_the_table_shows(name: str) -> None:
    for panel in panels(name):
        if panel["type"] != "table":
            continue
        (organize,) = [t["options"] for t in panel["transformations"] if t["id"] == "organize"]
        shown = set(organize["indexByName"])
        assert not shown & {field for field, hidden in organize["excludeByName"].items() if hidden}
        for url in links(panel):
            assert set(re.findall(r"\$\{__data\.fields\.(\w+)", url)) <= shown, f"{panel['title']}: {url}"


@board
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    everything = BOARDS[name]["panels"]
    assert [panel["id"] for panel in everything] == list(range(1, len(everything) + 1))
    taken: dict[tuple[int, int], str] = {}
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x, y in itertools.product(range(place["w"]), range(place["h"])):
            cell = (place["x"] + x, place["y"] + y)
            assert cell not in taken, f"{panel['title']} lies over {taken.get(cell)}"
            taken[cell] = panel["title"]


@board
def test_rows_of_panels_fill_the_width(name: str) -> None:
    widths: dict[int, int] = {}
    for panel in panels(name):
        widths[panel["gridPos"]["y"]] = widths.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert set(widths.values()) == {24}
