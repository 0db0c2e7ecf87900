"""What Grafana does with a dashboard's variables before it asks Prometheus."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness.prometheus import Prometheus

RATE_INTERVAL: Final = "10s"
"""$__rate_interval: four scrapes or more."""

Choice = str | Sequence[str]
"""One value of a variable, or several; ALL for all of them."""
ALL: Final = "$__all"

_VARIABLE: Final = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Question:
    """One query of one panel; `instant`: of now, else over time."""

    board: str
    panel: str
    number: int
    expr: str
    instant: bool


def questions(name: str, board: Mapping[str, Any]) -> list[Question]:
    """Every query of a dashboard."""
    return [
        Question(name, panel["title"], number, target["expr"], target["instant"])
        for panel in board["panels"]
        for number, target in enumerate(panel.get("targets", []))
    ]


def variables(board: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A dashboard's variables by name, in their order."""
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def interpolated(text: str, board: Mapping[str, Any], chosen: Mapping[str, Choice]) -> str:
    """The query as it is sent.

    Prometheus' data source escapes by itself: what may be several is a regular expression within a
    double-quoted string, so each special character gets two backslashes, and a backslash four; several
    are (a|b); All is the variable's allValue as it stands. What is one alone has its backslashes doubled.
    """
    known = variables(board)

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name == "__rate_interval":
            return RATE_INTERVAL
        if name not in known:
            return match[0]
        choice = chosen[name]
        if choice == ALL:
            everything: str = known[name]["allValue"]
            return everything
        if not known[name].get("multi"):
            assert isinstance(choice, str)
            return choice.replace("\\", "\\\\").replace("'", "\\\\'")
        values = [choice] if isinstance(choice, str) else list(choice)
        escaped = [_escaped(each) for each in values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

    return _VARIABLE.sub(value, text)


def _escaped(value: str) -> str:
    return re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", "\\\\\\\\"))


async def options(
    prometheus: Prometheus, board: Mapping[str, Any], name: str, chosen: Mapping[str, Choice]
) -> list[str]:
    """The values that a query variable offers."""
    variable = variables(board)[name]
    query = interpolated(variable["query"], board, chosen)
    of_label = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    if of_label is not None:
        # As match[]: only what has the metric.
        found: list[str] = await prometheus.ask(f"label/{of_label[2]}/values", match=of_label[1])
        return found
    result = re.fullmatch(r"query_result\((.+)\)", query)
    assert result is not None, query
    pattern = re.compile(variable["regex"].strip("/"))
    rows = [
        "{" + ",".join(f'{label}="{text}"' for label, text in series["metric"].items()) + "}"
        for series in await prometheus.query(result[1])
    ]
    return [match[1] for row in rows if (match := pattern.search(row))]
