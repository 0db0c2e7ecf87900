"""The source `exec`: a program that prints the devices as JSON."""

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta, Struct

from plugin.discovery.command import Outcome, run_command
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found, Scanner, Shared, SharedState, SourceConfig, same_path
from plugin.discovery.sysfs_tree import clean
from plugin.fields import Duration, Problem, TemplateText, duration_problem
from plugin.names import attribute_problem, path_problem
from runtime.text import parse_duration, quoted, visible

MAX_OUTPUT: Final = 1 << 20
"""Bytes that a program may print."""
MAX_ATTRIBUTES: Final = 64
MAX_VALUE: Final = 1024
"""Characters of an attribute's value; longer values are cut."""


class Exec(SourceConfig, frozen=True):
    """A program that prints the devices as a JSON array of objects on standard output.

    Each object has `name` and optionally `path`, `attrs` (text by name), `numa` (node number), `nodes` (host
    paths), `sysfs` (where the search for the NUMA node starts) and `unhealthy` (the reason).

    The program comes from the plugin's image or a mount. Its environment is PATH and HOST_ROOT, the directory
    of the host's files. Unless it exits with 0, the devices stay as they were.

    Attributes: those that it prints.
    """

    identifies_devices: ClassVar[bool] = False

    command: Annotated[list[TemplateText], Meta(min_length=1, max_length=64)]
    """The program, an absolute path, and its arguments; no templates."""
    timeout: Annotated[Duration, Meta(extra={"check": duration_problem("100ms", "15s")})] = "10s"
    """The program is killed then, with its children; at most 15s."""
    interval: Annotated[Duration, Meta(extra={"check": duration_problem("0", "1d")})] = "10s"
    """The shortest time between two runs."""

    def contradictions(self) -> Iterator[Problem]:
        problem = path_problem(self.command[0])
        if problem is not None:
            yield ("command", 0), f"found {quoted(self.command[0])}, {problem}"
        for index, part in enumerate(self.command):
            if "\0" in part:
                yield ("command", index), f"found {quoted(part)}, expected text without NUL"

    def scanner(self) -> Scanner:
        return ExecScanner(self)

    def attributes(self) -> None:
        return None

    def host_paths(self) -> Iterable[str]:
        return ()


class PrintedDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """One device as a program prints it."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    path: str = ""
    attrs: Annotated[dict[str, str], Meta(max_length=MAX_ATTRIBUTES)] = {}
    numa: Annotated[int, Meta(ge=-1, le=1023)] | None = None
    nodes: Annotated[list[str], Meta(max_length=256)] = []
    sysfs: str = ""
    unhealthy: str = ""


class _Run(Struct):
    """The last run: its start, and its devices or its failure."""

    began: float | None = None
    found: tuple[Found, ...] = ()
    problem: str = ""


_STATE: Final = SharedState(_Run)


class ExecScanner:
    """Runs the program of a configuration."""

    def __init__(self, config: Exec, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._command = tuple(config.command)
        self._timeout = parse_duration(config.timeout)
        self._interval = parse_duration(config.interval)
        self._monotonic = monotonic
        self._run: Shared[_Run] | None = None

    def scan(self, host: HostRoot) -> Findings:
        """The printed devices; those of the last run if it began less than `interval` ago."""
        self._run = shared = _STATE.of(host, (self._command, self._timeout, self._interval))
        with shared.lock:
            run = shared.value
            now = self._monotonic()
            if run.began is None or now - run.began >= self._interval:
                run.began = now
                run.found, run.problem = self._run_once(host)
            if run.problem:
                raise OSError(errno.EINVAL, run.problem, self._command[0])
            found = run.found
        return Findings(found, notes=() if found else (f"{self._command[0]} printed no device",))

    def _run_once(self, host: HostRoot) -> tuple[tuple[Found, ...], str]:
        """(devices, failure) of one run."""
        environment = {"HOST_ROOT": str(host.here("/")), "LANG": "C.UTF-8"}
        try:
            outcome = run_command(
                self._command, limit=self._timeout, most=MAX_OUTPUT, environment=environment
            )
        except (OSError, ValueError) as error:
            return (), f"cannot be run: {getattr(error, 'strerror', None) or error}"
        problem = self._failure(outcome)
        return ((), problem) if problem else _devices(outcome.output)

    def _failure(self, outcome: Outcome) -> str:
        """Why a run failed; empty if it did not."""
        lines = outcome.error.decode(errors="replace").strip().splitlines()
        said = f": {visible(lines[0].strip(), 200)}" if lines else ""
        if outcome.status is None:
            return f"did not end within {self._timeout:g} s{said}"
        if outcome.status:
            return f"exit status {outcome.status}{said}"
        return f"printed more than {MAX_OUTPUT} bytes" if len(outcome.output) >= MAX_OUTPUT else ""

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The same device, while its path exists."""
        return same_path(host, found)


def _devices(output: bytes) -> tuple[tuple[Found, ...], str]:
    """(devices, first problem) of the printed text."""
    try:
        printed = msgspec.json.decode(output, type=list[PrintedDevice])
    except (msgspec.DecodeError, RecursionError) as error:
        return (), f"printed something else than a JSON array of devices: {visible(str(error), 300)}"
    seen: set[str] = set()
    for index, item in enumerate(printed):
        problem = f"found the name {quoted(item.name)} a second time" if item.name in seen else _problem(item)
        if problem:
            return (), f"printed a bad device, number {index}: {visible(problem, 300)}"
        seen.add(item.name)
    return tuple(_found(item) for item in printed), ""


def _problem(item: PrintedDevice) -> str:
    for key, path in (("path", item.path), ("sysfs", item.sysfs), *(("nodes", node) for node in item.nodes)):
        problem = path_problem(path) if path or key == "nodes" else None
        if problem is not None:
            return f"found {key} {quoted(path)}, {problem}"
    for name in item.attrs:
        problem = attribute_problem(name)
        if problem is not None:
            return f"found the attribute {quoted(name)}, {problem}"
    return ""


def _found(item: PrintedDevice) -> Found:
    return Found(
        item.name,
        item.path,
        {name: clean(value, MAX_VALUE) for name, value in item.attrs.items()},
        clean(item.unhealthy),
        numa_node=None if item.numa is None or item.numa < 0 else item.numa,
        nodes=tuple(dict.fromkeys(item.nodes)),
        sysfs=item.sysfs,
    )
