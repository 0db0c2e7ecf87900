"""Probes of devices: what to check, the check itself, which blocks, and threads that run the checks."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from plugin.config.plan import (
    CarrierCheck,
    ExecCheck,
    ExistsCheck,
    FileCheck,
    HttpCheck,
    NodesCheck,
    ProbePlan,
    XidCheck,
)
from plugin.config.templates import Template, TemplateError
from plugin.devices.device import Device
from plugin.discovery.command import run_command
from plugin.discovery.host import HostRoot
from plugin.names import path_problem, top_level
from plugin.serving.blocking import Call, begin
from runtime.patterns import MAX_TEXT, fullmatch
from runtime.text import quoted

WITHOUT_EVENTS: Final = 10.0
"""Seconds between runs where the kernel has no events: files of sysfs and proc, carriers."""
COSTLY: Final = 30.0
"""Default seconds between runs of a program and between requests."""

_SILENT: Final = ("/sys/", "/proc/")
"""Where files change without inotify events."""
_OUTPUT: Final = 4096


class Question(Struct, frozen=True):
    """One probe of one device. `ask` returns why it fails, or an empty text; None: a GET of `url`.

    It runs every `interval` seconds unless that is None; `with_scans`: also with each scan of the host, and
    when one of `paths` changes.
    """

    device: str
    probe: int
    place: str
    timeout: float
    interval: float | None
    with_scans: bool
    ask: Callable[[], str] | None
    paths: tuple[str, ...] = ()
    url: str = ""
    status: frozenset[int] | None = None


def questions(probes: Sequence[ProbePlan], device: Device, host: HostRoot) -> Iterator[Question]:
    """The probes of a device. A probe fails if its template does."""
    for number, probe in enumerate(probes):
        if isinstance(probe.check, XidCheck):
            continue  # reported by events
        try:
            yield _question(number, probe, device, host)
        except TemplateError as error:
            failed = partial(str, f"{probe.place}: {error}")
            yield Question(
                device.id, number, probe.place, probe.timeout, interval=None, with_scans=True, ask=failed
            )


def asked_at_allocate(probe: ProbePlan) -> bool:
    """Whether Allocate runs a probe again: it is cheap, and one failure makes a device unhealthy. For other
    probes the last result counts.
    """
    return isinstance(probe.check, ExistsCheck | FileCheck) and probe.interval is None and probe.failures == 1


def _question(number: int, probe: ProbePlan, device: Device, host: HostRoot) -> Question:
    check, variables = probe.check, {"device": device}
    default: float | None = COSTLY
    ask: Callable[[], str] | None = None
    paths: tuple[str, ...] = ()
    url = ""
    match check:
        case ExistsCheck():
            paths = (path := _path(check.path, variables),)
            default, ask = _polling(path), partial(_exists, host, path)
        case NodesCheck():
            paths = tuple(dict.fromkeys(_node_paths(check, device)))
            default, ask = None, partial(_all_exist, host, paths)
        case FileCheck():
            paths = (path := _path(check.path, variables),)
            equals = None if check.equals is None else check.equals.render(variables)
            default, ask = _polling(path), partial(_file, host, check, path, equals)
        case CarrierCheck():
            default, ask = WITHOUT_EVENTS, partial(_carrier, host, check.interface.render(variables))
        case ExecCheck():
            program, *arguments = check.command
            command = [_path(program, variables), *(part.render(variables) for part in arguments)]
            ask = partial(_exec, command, probe.timeout)
        case HttpCheck():
            url = _filled(check.url, variables)
        case XidCheck():
            raise AssertionError(probe.place)
    return Question(
        device.id,
        number,
        probe.place,
        probe.timeout,
        interval=default if probe.interval is None else probe.interval,
        with_scans=probe.interval is None and isinstance(check, _WITH_SCANS),
        ask=ask,
        paths=paths,
        url=url,
        status=check.status if isinstance(check, HttpCheck) else None,
    )


_WITH_SCANS: Final = (ExistsCheck, NodesCheck, FileCheck, CarrierCheck)


def _filled(template: Template, variables: Mapping[str, object]) -> str:
    text = template.render(variables)
    if not text.strip():
        raise TemplateError(f"{quoted(template.text)} is empty: nothing was found for it")
    return text


def _node_paths(check: NodesCheck, device: Device) -> Iterator[str]:
    for host in check.hosts:
        if "node" in host.uses:
            yield from (_path(host, {"device": device, "node": node}) for node in device.nodes)
        else:
            yield _path(host, {"device": device})


def _path(template: Template, variables: Mapping[str, object]) -> str:
    path = _filled(template, variables)
    problem = path_problem(path)
    if problem is not None:
        raise TemplateError(problem)
    return path


def _polling(path: str) -> float | None:
    return WITHOUT_EVENTS if path.startswith(_SILENT) else None


def _exists(host: HostRoot, path: str) -> str:
    try:
        return "" if host.exists(path) else f"{path} is not there"
    except OSError as error:
        return _os_problem(error, path)


def _all_exist(host: HostRoot, paths: Sequence[str]) -> str:
    """As for Allocate: of a top-level directory that --host-root does not show nothing is known."""
    for path in paths:
        if (problem := _exists(host, path)) and host.exists(top_level(path)):
            return problem
    return ""


def _file(host: HostRoot, check: FileCheck, path: str, equals: str | None) -> str:
    try:
        content = host.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is not there"
    except OSError as error:
        return _os_problem(error, path)
    expected = next(_expected(check, content, equals), None)
    return "" if expected is None else f"{path}: found {quoted(content)}, expected {expected}"


def _expected(check: FileCheck, content: str, equals: str | None) -> Iterator[str]:
    """The expectations that the content does not meet."""
    if equals is not None and content != equals:
        yield quoted(equals)
    if check.one_of is not None and content not in check.one_of:
        yield f"one of {', '.join(map(quoted, check.one_of))}"
    if check.matches is not None and fullmatch(check.matches, content) is None:
        yield f"what matches {check.matches}"
    if check.not_matches is not None and (
        len(content) > MAX_TEXT or fullmatch(check.not_matches, content) is not None
    ):
        yield f"what does not match {check.not_matches}"
    if check.at_least is None and check.at_most is None:
        return
    number = _number(content)
    if number is None:
        yield "a number"
    elif check.at_least is not None and not number >= check.at_least:
        yield f"at least {check.at_least:g}"
    elif check.at_most is not None and not number <= check.at_most:
        yield f"at most {check.at_most:g}"


def _number(text: str) -> float | None:
    """A number of sysfs: decimal, or hexadecimal with 0x; a unit after a blank is ignored."""
    first = (text.split(maxsplit=1) or [""])[0]
    try:
        return float(int(first, 16)) if first.lower().startswith("0x") else float(first)
    except (ValueError, OverflowError):
        return None


def _carrier(host: HostRoot, interface: str) -> str:
    """A missing interface passes: it is in a pod, or its function has none."""
    if not interface or "/" in interface or interface in {".", ".."}:
        return ""
    path = f"/sys/class/net/{interface}/carrier"
    try:
        return "" if host.read(path) == "1" else f"{interface} has no carrier"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        # The kernel returns EINVAL for an interface that is down.
        return f"{interface} is down"


def _exec(command: list[str], timeout: float) -> str:
    try:
        outcome = run_command(command, limit=timeout, most=_OUTPUT)
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    if outcome.status == 0:
        return ""
    if outcome.status is None:
        return f"{command[0]}: no end within {timeout:g} s"
    lines = (outcome.error.strip() or outcome.output.strip()).decode(errors="replace").splitlines()
    reason = f": {lines[0][:120]}" if lines else ""
    return f"{command[0]}: status {outcome.status}{reason}"


def _os_problem(error: OSError, path: str) -> str:
    return f"{error.filename or path}: {error.strerror or error}"


MOST_THREADS: Final = 8
"""Threads of one resource that run probes at the same time."""
MOST_HANGING: Final = 16
"""Abandoned threads of one resource."""
STALL: Final = 0.05
"""Seconds of one probe after which another thread continues with the rest."""

Answered = Callable[[Question, str], None]


class ProbeRunner:
    """Runs the probes of one resource. A probe that hangs fails, and does not run again before it returns."""

    def __init__(self) -> None:
        self._hanging: dict[tuple[str, int], Call[None]] = {}

    async def run(self, asked: Sequence[Question], answered: Answered) -> None:
        """Run probes, and call `answered` with each and why it fails, or an empty text, as they end."""
        self._hanging = {key: call for key, call in self._hanging.items() if not call.ended}
        rest: deque[Question] = deque()
        for question in asked:
            if (question.device, question.probe) in self._hanging:
                answered(question, f"{question.place}: still no answer")
            else:
                rest.append(question)
        batches: set[_Batch] = set()
        try:
            while rest or batches:
                if rest and len(batches) < MOST_THREADS and all(batch.stalled for batch in batches):
                    if len(self._hanging) < MOST_HANGING:
                        batches.add(_Batch(rest))
                    elif not batches:
                        self._refuse(rest, answered)
                        continue
                ends = {batch.end for batch in batches}
                await asyncio.wait(ends, timeout=STALL, return_when=asyncio.FIRST_COMPLETED)
                for batch in tuple(batches):
                    self._collect(batch, batches, answered)
        finally:
            rest.clear()
            for batch in batches:
                batch.end.cancel()

    def _collect(self, batch: "_Batch", batches: set["_Batch"], answered: Answered) -> None:
        """Report the results of a batch; abandon the batch if its current probe hangs."""
        finished = batch.end.done()
        while batch.answers:
            answered(*batch.answers.popleft())
        late = None if finished else batch.late()
        if late is not None:
            batch.end.cancel()
            self._hanging[late.device, late.probe] = batch.call
            answered(late, f"{late.place}: no answer within {late.timeout:g} s")
        if finished or late is not None:
            batches.remove(batch)

    def _refuse(self, rest: deque[Question], answered: Answered) -> None:
        while rest:
            question = rest.popleft()
            answered(question, f"{question.place}: not asked, {len(self._hanging)} others have not answered")


class _Batch:
    """Probes that one thread runs one after another, until none is left or one exceeds its time."""

    def __init__(self, rest: deque[Question]) -> None:
        self.answers: deque[tuple[Question, str]] = deque()
        self._rest = rest
        self._lock = threading.Lock()
        self._current: Question | None = None
        self._since = time.monotonic()
        self._given_up = False
        self.call = begin(self._run, [], 0.0)
        self.end = asyncio.create_task(self.call.wait())

    @property
    def stalled(self) -> bool:
        """Whether its current probe has run for `STALL` seconds."""
        return time.monotonic() - self._since >= STALL

    def late(self) -> Question | None:
        """The probe that exceeded its time; its result is then ignored."""
        with self._lock:
            question = self._current
            # A program is killed at its own limit, and its message is better: wait a little longer.
            if question is None or time.monotonic() - self._since < question.timeout + STALL:
                return None
            self._given_up = True
            return question

    def _run(self) -> None:
        while True:
            try:
                question = self._rest.popleft()
            except IndexError:
                return
            with self._lock:
                self._current, self._since = question, time.monotonic()
            try:
                reason = question.ask() if question.ask is not None else ""
            except Exception as error:  # noqa: BLE001 -- any exception is a failure
                reason = f"{question.place}: {type(error).__name__}: {error}"
            with self._lock:
                if self._given_up:
                    return
                self._current = None
                self.answers.append((question, reason))
