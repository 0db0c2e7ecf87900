"""Probes: exactly one kind in each item of `health`, and times that can be kept."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType

from plugin.core import model, names, patterns
from plugin.core.place import FOUND, Place
from plugin.core.plan import (
    CarrierCheck,
    Check,
    ExecCheck,
    ExistsCheck,
    FileCheck,
    HttpCheck,
    ProbePlan,
    XidCheck,
)
from plugin.core.templates import Template

DEFAULT_TIMEOUT: Final = 5.0


def compile_probes(
    written: list[model.Probe], sources: tuple[model.AnySource, ...], place: Place
) -> tuple[ProbePlan, ...]:
    """The probes of `health`, at `place`, for devices of `sources`. Raises ConfigError."""
    probes: list[ProbePlan] = []
    for index, probe in enumerate(written):
        compiled = _probe(probe, sources, place.at(index))
        for earlier, other in enumerate(probes):
            if other.check == compiled.check:
                raise place.at(index).error(f"found what item {earlier} checks already")
        probes.append(compiled)
    return tuple(probes)


def _probe(probe: model.Probe, sources: tuple[model.AnySource, ...], place: Place) -> ProbePlan:
    given = [name for name in PROBES if getattr(probe, name) is not UNSET]
    if len(given) != 1:
        found = "no probe" if not given else " and ".join(given)
        raise place.error(f"found {found}, expected exactly one of {', '.join(PROBES)}")
    kind = given[0]
    if kind == "xid":
        _only_events(probe, sources, place)
    interval = (
        None if probe.interval is UNSET else place.at("interval").duration(probe.interval, "100ms", "1d")
    )
    return ProbePlan(
        check=PROBES[kind](getattr(probe, kind), place.at(kind)),
        place=f"health[{place.path[-1]}].{kind}",
        interval=interval,
        timeout=_timeout(probe.timeout, interval, place.at("timeout")),
        failures=probe.failures,
        successes=probe.successes,
        initial=None if probe.initial is UNSET else probe.initial,
    )


def _timeout(written: str | UnsetType, interval: float | None, place: Place) -> float:
    if written is UNSET:
        return DEFAULT_TIMEOUT if interval is None else min(DEFAULT_TIMEOUT, interval)
    timeout = place.duration(written, "10ms", "5m")
    if interval is None and timeout > 30.0:
        raise place.error(f"found '{written}', expected at most 30s, or an interval that is as long")
    if interval is not None and timeout > interval:
        raise place.error(f"found '{written}', expected at most the interval, {interval:g}s")
    return timeout


def _only_events(probe: model.Probe, sources: tuple[model.AnySource, ...], place: Place) -> None:
    """XIDs come when they come: nothing is asked, so nothing says how often."""
    for key in ("interval", "timeout", "initial"):
        if getattr(probe, key) is not UNSET:
            raise place.at(key).error(f"found {key} beside xid, which is told by events and never asked")
    for key in ("failures", "successes"):
        if getattr(probe, key) != 1:
            raise place.at(key).error(f"found {key} beside xid, which is told by events and never asked")
    if not any(isinstance(source, model.Nvidia) for source in sources):
        raise place.at("xid").error("found xid for devices of other sources, expected nvidia in discover")


def _exists(path: str, place: Place) -> Check:
    return ExistsCheck(place.template(path, FOUND, names.path_problem))


def _file(written: model.FileProbe, place: Place) -> Check:
    keys = ("equals", "one_of", "matches", "not_matches", "at_least", "at_most")
    given = [key for key in keys if getattr(written, key) is not UNSET]
    if not given:
        raise place.error(f"found no expectation, expected one of {', '.join(keys)} (or the probe exists)")
    if "equals" in given and "one_of" in given:
        raise place.at("one_of").error("found equals and one_of, expected one of them")
    if written.one_of == []:
        raise place.at("one_of").error("found an empty list, which no content satisfies")
    at_least = _number(written.at_least, place.at("at_least"))
    at_most = _number(written.at_most, place.at("at_most"))
    if at_least is not None and at_most is not None and at_least > at_most:
        raise place.at("at_most").error(
            f"found {at_most:g}, expected at least {at_least:g}, at_least's value"
        )
    return FileCheck(
        path=place.at("path").template(written.path, FOUND, names.path_problem),
        equals=None
        if written.equals is UNSET
        else place.at("equals").template(written.equals, FOUND, _content_problem),
        one_of=None if written.one_of is UNSET else tuple(written.one_of),
        matches=_pattern(written.matches, place.at("matches")),
        not_matches=_pattern(written.not_matches, place.at("not_matches")),
        at_least=at_least,
        at_most=at_most,
    )


def _content_problem(text: str) -> str | None:
    return None if text == text.strip() else "expected text without white space at its ends"


def _number(value: float | UnsetType, place: Place) -> float | None:
    if value is UNSET:
        return None
    if not math.isfinite(value):
        raise place.error(f"found {value}, expected a finite number")
    return float(value)


def _pattern(text: str | UnsetType, place: Place) -> str | None:
    return None if text is UNSET else place.check(text, patterns.pattern_problem)


def _carrier(interface: str, place: Place) -> Check:
    return CarrierCheck(place.template(interface, FOUND, names.interface_problem))


def _exec(written: model.ExecProbe, place: Place) -> Check:
    return ExecCheck(compile_command(written.command, FOUND, place.at("command")))


def compile_command(command: list[str], variables: frozenset[str], place: Place) -> tuple[Template, ...]:
    """A program by its absolute path, and its arguments. Raises ConfigError."""
    return tuple(
        place.at(index).template(part, variables, names.path_problem if index == 0 else None)
        for index, part in enumerate(command)
    )


def _http(written: model.HttpProbe, place: Place) -> Check:
    url = place.at("url").template(written.url, FOUND, names.url_problem)
    if written.status is UNSET:
        return HttpCheck(url)
    if not written.status:
        raise place.at("status").error("found an empty list, which no answer satisfies")
    for index, status in enumerate(written.status):
        if not 100 <= status <= 599:
            raise place.at("status", index).error(f"found {status}, expected a status from 100 to 599")
    return HttpCheck(url, frozenset(written.status))


def _xid(written: model.XidProbe, place: Place) -> Check:
    for index, code in enumerate(written.ignore):
        if not 0 <= code < 1 << 32:
            raise place.at("ignore", index).error(f"found {code}, expected an XID: a number from 0")
    return XidCheck(frozenset(written.ignore), place.at("quiet").duration(written.quiet, "1s", "1w"))


PROBES: Final[Mapping[str, Callable[[Any, Place], Check]]] = {
    "exists": _exists,
    "file": _file,
    "carrier": _carrier,
    "exec": _exec,
    "http": _http,
    "xid": _xid,
}
