"""A change as a line for people, or as JSON for programs. Pure."""

import json
from typing import Final

from exporter.cli.table.draw import painted
from exporter.cli.table.terminal import Look
from exporter.cli.table.width import closed, padded, tame
from exporter.cli.watch.changes import Change, Event
from exporter.views.wording import spelled

_STYLES: Final = {Event.UNHEALTHY: "unhealthy", Event.LOST: "perhaps", Event.RELEASED: "free"}
_WIDEST: Final = max(map(len, Event))


def as_line(change: Change, now: str, look: Look, *, fleet: bool) -> str:
    """`2026-11-20T22:41:03Z  allocated  nvidia.com/gpu  GPU-0  ml/llama-0  trainer`, without a line's end."""
    event = painted(padded(change.event, _WIDEST), _STYLES.get(change.event, ""), look)
    labels = [value for _, value in change.where.labels]
    texts = [
        *([*labels, change.where.node] if fleet or not change.resource else []),
        *(change.resource, change.device),
        *([f"{change.namespace}/{change.pod}", change.container] if change.pod else []),
    ]
    shown = [tame(spelled(text)) for text in texts if text]
    told = [closed(text) if look.terminal else text for text in shown]
    return "  ".join([_seconds(change.time or now), event, *told])


def _seconds(stamp: str) -> str:
    """A time to the second."""
    head, dot, _ = spelled(stamp).partition(".")
    return f"{head}Z" if dot else head


def as_json_line(change: Change, now: str) -> str:
    """One object on one line, pure ASCII; what is not known is null."""
    document = {
        "time": change.time or now,
        "event": change.event.value,
        "node": change.where.node,
        "labels": dict(change.where.labels),
        "resource": change.resource or None,
        "device": change.device or None,
        "namespace": change.namespace or None,
        "pod": change.pod or None,
        "container": change.container or None,
        "pod_uid": change.uid or None,
    }
    return json.dumps(document, ensure_ascii=True).replace("\x7f", "\\u007f")
