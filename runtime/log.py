"""Structured logging: one event a line, as logfmt or JSON, on standard error.

A thin layer over the standard library's logging, so that libraries' own messages come out in the
same form. Events are short fixed texts; what varies goes into fields.
"""

import json
import logging
import math
import sys
import time
from collections.abc import Mapping
from typing import Final, Literal, TextIO

from runtime.text import shortened, visible

LEVELS: Final = ("debug", "info", "warn", "error")
FORMATS: Final = ("logfmt", "json")

_LEVEL_NUMBERS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
_LEVEL_NAMES: Final = {number: name for name, number in _LEVEL_NUMBERS.items()} | {logging.CRITICAL: "error"}
_FIELDS: Final = "devicelens_fields"
_VALUE_LIMIT: Final = 8192
"""Characters of one value; longer ones are cut in the middle."""


class Log:
    """A named source of structured events: `log.info("registered", resource=name)`."""

    __slots__ = ("_logger",)

    def __init__(self, component: str) -> None:
        self._logger = logging.getLogger(f"devicelens.{component}")

    def debug(self, event: str, /, **fields: object) -> None:
        """Something for developers."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Something that happened as it should."""
        self._emit(logging.INFO, event, fields)

    def warn(self, event: str, /, **fields: object) -> None:
        """Something that needs attention; the process carries on."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Something that does not work until an administrator acts."""
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={_FIELDS: fields})


class Episode:
    """A failure that may last: logged when it starts, when it changes and when it ends, not each time.

    Call `failed` and `recovered` at each attempt. A different reason is logged at most every `calm` seconds,
    a more severe level at once.
    """

    __slots__ = (
        "_calm",
        "_count",
        "_event",
        "_failed_at",
        "_fields",
        "_highest",
        "_log",
        "_logged",
        "_logged_at",
        "_reason",
    )

    def __init__(self, log: Log, event: str, /, *, calm: float = 0.0, **fields: object) -> None:
        self._log = log
        self._event = event
        self._calm = calm
        self._fields = fields
        self._reason: str | None = None
        self._failed_at = 0.0
        self._logged: str | None = None
        self._logged_at = 0.0
        self._highest = 0
        self._count = 0

    @property
    def reason(self) -> str | None:
        """The present failure in words, None for none."""
        return self._reason

    def failed(self, reason: str, *, level: Literal["debug", "info", "warn", "error"] = "warn") -> None:
        """Log that it failed, once for each different `reason` in a row.

        `level` "debug" is for what the next attempts may succeed at; its end is logged at the same level.
        """
        self._count += 1
        first, self._reason = self._reason is None, reason
        now, severity = time.monotonic(), LEVELS.index(level)
        self._failed_at = now
        more_severe = severity > self._highest
        if first or more_severe or (reason != self._logged and now - self._logged_at >= self._calm):
            self._logged, self._logged_at = reason, now
            self._highest = max(self._highest, severity)
            getattr(self._log, level)(self._event, reason=reason, **self._fields)

    def recovered(self, *, quiet: float = 0.0) -> None:
        """Log that it works again, if it had failed and the last failure is at least `quiet` seconds ago."""
        if self._reason is None or time.monotonic() - self._failed_at < quiet:
            return
        log = self._log.info if self._highest else self._log.debug
        log(f"{self._event}: over", failures=self._count, **self._fields)
        self._reason = None
        self._count = self._highest = 0


class _Formatter(logging.Formatter):
    """Turns a record into its parts: time, level, component, message, fields."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._render = _as_json if form == "json" else _as_logfmt

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts: dict[str, object] = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": _LEVEL_NAMES.get(record.levelno, "info"),
            "component": record.name.removeprefix("devicelens."),
            "msg": record.getMessage(),
        }
        fields: Mapping[str, object] = getattr(record, _FIELDS, {})
        for key, value in fields.items():
            if value is not None:
                # A field must not replace the level or the time.
                parts[f"{key}_" if key in parts else key] = value
        if record.exc_info:
            parts["exception"] = self.formatException(record.exc_info)
        return self._render(parts)


def _as_json(parts: Mapping[str, object]) -> str:
    return json.dumps({key: _json_value(value) for key, value in parts.items()}, ensure_ascii=True)


def _json_value(value: object) -> bool | int | float | str:
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return shortened(str(value), _VALUE_LIMIT)


def _as_logfmt(parts: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_logfmt_value(value)}" for key, value in parts.items())


def _logfmt_value(value: object) -> str:
    plain = shortened(str(value).lower() if isinstance(value, bool) else str(value), _VALUE_LIMIT)
    # Backslashes first: those that `visible` and the quotes add must stay single.
    text = visible(plain.replace("\\", "\\\\"), limit=2 * _VALUE_LIMIT)
    if text and text.isprintable() and not any(c in text for c in ' ="\\'):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def configure(level: str = "info", form: str = "logfmt", stream: TextIO | None = None) -> None:
    """Send every event of at least `level` (one of LEVELS) to `stream`, in `form` (one of FORMATS).

    Replaces an earlier configuration: each command calls it once.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Formatter(form))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("devicelens").setLevel(_LEVEL_NUMBERS[level])
