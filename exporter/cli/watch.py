"""`devicelens who --watch`: a live table on a terminal, or one line for each change, until interrupted."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import count
from threading import Thread
from typing import Any, Final, TextIO

import click
from msgspec import Struct
from rich.console import Group
from rich.live import Live
from rich.text import Text

from exporter.cli import query
from exporter.cli.client import ServerClient, StatusError
from exporter.cli.common import STALE, AskError, OutputFlags, say
from exporter.cli.select import (
    CPU,
    CpusEntry,
    HolderQuery,
    MappingAnswer,
    NamespacedPod,
    NodeDocument,
    in_states,
    is_alternative,
    narrow,
)
from exporter.cli.sources import ChosenSource
from exporter.cli.table import Cell, Table, holders_table
from exporter.cli.terminal import draw, open_console
from exporter.views.wording import clock_time, counted, rfc3339, spelled
from runtime.text import visible

INTERVALS: Final = {"exporter": 5.0, "kubelet": 2.0, "prometheus": 15.0}
"""Seconds between polls, by source."""
RETRIES: Final = (1.0, 2.0, 5.0)
"""Seconds before the first, the second and further attempts after a failure."""
_POLLS: Final = 20
"""Polls of an exporter without an event stream, before the stream is tried again."""
_MARKED: Final = 15.0
"""Seconds for which the table marks a change."""
_NO_STREAM: Final = frozenset({404, 503})


def follow(source: ChosenSource, filters: HolderQuery, *, interval: float, output: OutputFlags) -> None:
    """Show the current holders and then each change, until SIGINT or SIGTERM.

    Raises AskError if the first query fails, and BadParameter.
    """
    asyncio.run(_follow(source, filters, interval, output))


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a daemon thread: a query under way does not delay the exit."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 -- the caller gets it
                future.set_exception(error)

        Thread(target=call, name="query", daemon=True).start()
        return future


async def _follow(source: ChosenSource, filters: HolderQuery, interval: float, output: OutputFlags) -> None:
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())
    first = narrow(await _query(source), filters)
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    view = _open_view(filters, output)
    try:
        view.update(first)
        async for update in updates(source, interval):
            if isinstance(update, AskError):
                view.fail(update.message)
            elif isinstance(update, MappingAnswer):
                view.update(narrow(update, filters))
            else:
                view.note(update)
    except asyncio.CancelledError:
        pass  # SIGINT or SIGTERM
    finally:
        view.close()


def _open_view(filters: HolderQuery, output: OutputFlags) -> "LiveTable | ChangeLines":
    if output.json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return ChangeLines(sys.stdout, filters, json_lines=output.json)
    return LiveTable(sys.stdout, filters, output, clock=time.time)


Update = MappingAnswer | AskError | str
"""An answer, a failure that is retried, or a warning."""


def updates(source: ChosenSource, interval: float) -> AsyncGenerator[Update]:
    """Answers whenever there may be a change. With the interval 0 an exporter sends events, and other sources
    are polled at their own pace.
    """
    if source.kind == "exporter" and not interval:
        return _by_events(source)
    return _by_polls(source, interval or INTERVALS[source.kind])


async def _query(source: ChosenSource) -> MappingAnswer:
    if source.kind == "kubelet":
        from exporter.cli import kubelet  # noqa: PLC0415 -- gRPC takes long to import

        return await kubelet.fetch_mapping(source)
    return await asyncio.to_thread(query.current_mapping, source)


async def _fetch(source: ChosenSource) -> MappingAnswer | AskError:
    try:
        return await _query(source)
    except (AskError, click.BadParameter) as error:
        return _failure(error)


def _failure(error: AskError | click.BadParameter) -> AskError:
    # A file of the credentials may change while the command runs.
    return error if isinstance(error, AskError) else AskError(f"{error.param_hint}: {error.message}")


async def _by_polls(
    source: ChosenSource, interval: float, polls: int | None = None
) -> AsyncGenerator[Update]:
    failures = 0
    for _ in count() if polls is None else range(polls):
        answer = await _fetch(source)
        yield answer
        failures = failures + 1 if isinstance(answer, AskError) else 0
        await asyncio.sleep(_retry_after(failures) if failures else interval)


async def _by_events(source: ChosenSource) -> AsyncGenerator[Update]:
    failures = 0
    while True:
        # A restarted exporter counts generations from 1.
        generation = 0
        try:
            with closing(ServerClient(source)) as client:
                numbers = client.generations()
                while (number := await asyncio.to_thread(next, numbers, None)) is not None:
                    # Events that arrived during a query are older than its answer.
                    if number < generation:
                        continue
                    answer = await _fetch(source)
                    yield answer
                    if isinstance(answer, MappingAnswer):
                        generation, failures = answer.nodes[0].generation, 0
            yield AskError(f"{source.address}: it ended the event stream")
        except StatusError as error:
            if error.status not in _NO_STREAM:
                yield error
            else:
                interval = INTERVALS["exporter"]
                yield f"polling every {interval:g} s, because there is no event stream: {error.message}"
                async for update in _by_polls(source, interval, _POLLS):
                    yield update
                continue
        except (AskError, click.BadParameter) as error:
            yield _failure(error)
        failures += 1
        await asyncio.sleep(_retry_after(failures))


def _retry_after(failures: int) -> float:
    return RETRIES[min(failures, len(RETRIES)) - 1]


Place = tuple[str, tuple[tuple[str, str], ...]]
"""A node, and the labels that distinguish it from others of its name."""


class HolderChange(Struct, frozen=True):
    """One change, at `time` by the exporter's clock (RFC 3339, "" if unknown).

    `event` is held (already by the first answer), allocated, released, unhealthy, healthy; of a node lost
    (Prometheus has no data) and back, or stale (the exporter's mapping) and fresh. `resource` and `device`
    are "" for a change of a node, `pod` is "" for a change without a holder. `confirmed` as in HolderEntry.
    """

    event: str
    place: Place
    time: str = ""
    resource: str = ""
    device: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    uid: str = ""
    confirmed: bool = True

    @property
    def name(self) -> tuple[Place, str, str]:
        """The device, and its node."""
        return self.place, self.resource, self.device


_Holding = tuple[str, str, str, str, str]
"""Resource, device, namespace, pod and container."""
_Proof = tuple[str, str, bool]
"""What distinguishes a pod from its successor of the same name: uid, and start; "" if unknown. Whether the
kubelet has confirmed the holding.
"""


class _NodeHoldings(Struct, frozen=True):
    held: Mapping[_Holding, _Proof]
    unhealthy: frozenset[tuple[str, str]]
    time: str


_NOTHING: Final = _NodeHoldings({}, frozenset(), "")


def _node_holdings(node: NodeDocument, pod: NamespacedPod | None, *, fleet: bool) -> _NodeHoldings:
    """The holdings of a node, of all pods or of `pod` alone."""
    held: dict[_Holding, _Proof] = {}
    for resource, device, holder in [(d.resource, d.device, h) for d in node.devices for h in d.holders]:
        if pod is None or pod.holds(holder.namespace, holder.pod):
            # Any other start proves nothing: an exporter without a history file sees each holder first after
            # its own restart.
            start = holder.since if holder.since_exact and not fleet else None
            key = (resource, device, holder.namespace, holder.pod, holder.container)
            held[key] = (holder.pod_uid or "", start or "", holder.confirmed)
    for cpus in node.cpus if pod is not None else ():
        held[CPU, _cpu_ids(cpus), cpus.namespace, cpus.pod, cpus.container] = (cpus.pod_uid or "", "", True)
    unhealthy = frozenset((d.resource, d.device) for d in node.devices if d.healthy is False)
    return _NodeHoldings(held, unhealthy, node.taken_at or "")


def _cpu_ids(cpus: CpusEntry) -> str:
    return str(cpus.count) if cpus.cpu_ids is None else ",".join(map(str, cpus.cpu_ids))


def _place(node: NodeDocument) -> Place:
    return node.node, tuple(sorted(node.labels.items()))


class ChangeTracker:
    """Compares each answer with the one before."""

    def __init__(self, pod: NamespacedPod | None = None) -> None:
        self._pod = pod
        self._nodes: dict[Place, _NodeHoldings] = {}
        self._lost: set[Place] = set()
        self._stale: set[Place] = set()

    def advance(self, answer: MappingAnswer) -> list[HolderChange]:
        """The changes since the last answer; for the first one, its holdings and unhealthy devices."""
        present = {
            _place(node): _node_holdings(node, self._pod, fleet=answer.fleet)
            for node in answer.nodes
            # Prometheus has no holders of a stale mapping: that is no release.
            if not (answer.fleet and node.freshness in {"stale", "unknown"})
        }
        lost = self._nodes.keys() - present.keys()
        changes = [HolderChange("lost", place) for place in lost - self._lost]
        changes += [HolderChange("back", place, present[place].time) for place in self._lost - lost]
        self._lost = lost
        stale = {_place(node) for node in answer.nodes if node.freshness in STALE and not answer.fleet}
        changes += [HolderChange("stale", place) for place in stale - self._stale]
        changes += [HolderChange("fresh", place) for place in self._stale - stale]
        self._stale = stale
        for place, now in present.items():
            changes += _differences(place, self._nodes.get(place), now)
        self._nodes |= present
        return sorted(changes, key=_order)


_FIRST: Final = ("lost", "back", "stale", "fresh", "released")


def _order(change: HolderChange) -> tuple[Place, int, str, str]:
    """By node; releases precede allocations."""
    rank = _FIRST.index(change.event) if change.event in _FIRST else len(_FIRST)
    return change.place, rank, change.resource, change.device


def _differences(place: Place, earlier: _NodeHoldings | None, now: _NodeHoldings) -> Iterator[HolderChange]:
    before = earlier or _NOTHING
    began = "held" if earlier is None else "allocated"
    for event, some, others in (("released", before.held, now.held), (began, now.held, before.held)):
        for key, proof in some.items():
            if key not in others or _replaced(proof, others[key]):
                yield HolderChange(event, place, now.time, *key, uid=proof[0], confirmed=proof[2])
    for event, devices in (
        ("unhealthy", now.unhealthy - before.unhealthy),
        ("healthy", before.unhealthy - now.unhealthy),
    ):
        for device in devices:
            # With its holder if there is only one.
            holders = [key for key in now.held if key[:2] == device]
            names = holders[0][2:] if len(holders) == 1 else ("", "", "")
            confirmed = len(holders) != 1 or now.held[holders[0]][2]
            yield HolderChange(event, place, now.time, *device, *names, confirmed=confirmed)


def _replaced(one: _Proof, other: _Proof) -> bool:
    """Whether these are certainly two pods, or one that released the device in between."""
    by_uid = bool(one[0] and other[0])
    proofs = (one[0], other[0]) if by_uid else (one[1], other[1])
    return all(proofs) and proofs[0] != proofs[1]


def as_line(change: HolderChange, now: str, *, fleet: bool) -> str:
    """`2026-11-20T22:41:03Z  allocated  nvidia.com/gpu  GPU-0  ml/llama-0  trainer`."""
    node, labels = change.place
    cells = [
        *map(Cell.raw, [*(value for _, value in labels), node] if fleet or not change.resource else []),
        *(Cell.raw(change.resource), Cell.of_id(change.device)),
        *map(Cell.raw, [f"{change.namespace}/{change.pod}", change.container] if change.pod else []),
        Cell("" if change.confirmed else "unconfirmed"),
    ]
    seconds, dot, _ = spelled(change.time or now).partition(".")
    time_and_event = (f"{seconds}Z" if dot else seconds, f"{change.event:<9}")
    return "  ".join([*time_and_event, *(cell.text for cell in cells if cell.text)])


def as_json_line(change: HolderChange, now: str) -> str:
    """One JSON object on one line, in ASCII; null where unknown."""
    members = ("resource", "device", "namespace", "pod", "container")
    document = {
        "time": change.time or now,
        "event": change.event,
        "node": change.place[0],
        "labels": dict(change.place[1]),
        **{name: getattr(change, name) or None for name in members},
        "pod_uid": change.uid or None,
        "confirmed": change.confirmed,
    }
    return json.dumps(document, ensure_ascii=True).replace("\x7f", "\\u007f")


class ChangeLines:
    """Writes each change as a line, and failures and warnings once on standard error."""

    def __init__(self, out: TextIO, filters: HolderQuery, *, json_lines: bool) -> None:
        self._out = out
        self._json = json_lines
        self._states = filters.states
        self._tracker = ChangeTracker(filters.pod)
        self._selected: frozenset[tuple[Place, str, str]] = frozenset()
        self._reason = ""
        self._notes: frozenset[str] = frozenset()

    def update(self, answer: MappingAnswer) -> None:
        """Write the changes."""
        if self._reason:
            say(f"{answer.origin} answers again")
            self._reason = ""
        for note in answer.notes:
            if note not in self._notes:
                say(note)
        self._notes = frozenset(answer.notes)
        now = rfc3339(time.time())
        selected = _devices(in_states(answer, self._states)) if self._states else frozenset()
        both, self._selected = selected | self._selected, selected
        for change in self._tracker.advance(answer):
            # With --state, changes of devices that were or are in one of the states.
            if self._states and change.resource and change.name not in both:
                continue
            line = as_json_line(change, now) if self._json else as_line(change, now, fleet=answer.fleet)
            self._out.write(f"{line}\n")
        self._out.flush()

    def fail(self, reason: str) -> None:
        """Write the reason, unless it is the last one."""
        if reason != self._reason:
            say(f"{reason}; trying again")
            self._reason = reason

    def note(self, text: str) -> None:
        """Write a warning."""
        say(text)

    def close(self) -> None:
        """Nothing to restore."""


def _devices(answer: MappingAnswer) -> frozenset[tuple[Place, str, str]]:
    """The devices and exclusive CPUs of an answer, as HolderChange names them."""
    return frozenset(
        (_place(node), *pair)
        for node in answer.nodes
        for pair in (
            *((device.resource, device.device) for device in node.devices),
            *((CPU, _cpu_ids(entry)) for entry in node.cpus),
        )
    )


class LiveTable:
    """The table of `devicelens who`, redrawn in place. A star marks what changed in the last 15 s."""

    def __init__(
        self, out: TextIO, filters: HolderQuery, output: OutputFlags, clock: Callable[[], float]
    ) -> None:
        self._filters = filters
        self._output = output
        self._clock = clock
        self._answer: MappingAnswer | None = None
        self._at = 0.0
        self._reason = ""
        self._note = ""
        self._changed: dict[tuple[str, ...], float] = {}
        self._console = open_console(out)
        # Redrawn each second: ages and marks change, and the terminal may be resized.
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=1,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def update(self, answer: MappingAnswer) -> None:
        """Show the answer, and mark rows that the one before did not have."""
        first = self._answer is None
        now = self._clock()
        answer = in_states(answer, self._filters.states)
        self._changed = {key: self._changed.get(key, 0.0 if first else now) for key in self._keys(answer)}
        self._answer, self._at, self._reason = answer, now, ""
        self._live.refresh()

    def fail(self, reason: str) -> None:
        """Show the reason above the last answer."""
        self._reason = reason
        self._live.refresh()

    def note(self, text: str) -> None:
        """Show a warning above the table."""
        self._note = text
        self._live.refresh()

    def close(self) -> None:
        """Leave the table on the screen, and show the cursor again."""
        self._live.stop()

    def _draw(self) -> Group:
        answer = self._answer
        if answer is None:
            return Group(Text("waiting for the first answer", "dim"))
        now = self._clock()
        table = self._table(answer, wide=self._output.wide)
        marked = [
            (Cell("*" if now - self._changed.get(key, 0.0) < _MARKED else ""), *row)
            for key, row in zip(self._keys(answer), table.rows, strict=True)
        ]
        names, headers = (" ", *table.names), not self._output.no_headers
        notes = [note for note in (self._note, *answer.notes) if note]
        lines = [self._status(answer), *(Text(visible(note), "yellow") for note in notes)]
        return Group(*lines, draw(names, marked, self._console.width, headers=headers))

    def _keys(self, answer: MappingAnswer) -> list[tuple[str, ...]]:
        """The identity of each row: its texts without times, which change by themselves."""
        table = self._table(answer, wide=True)
        times = {i for i, name in enumerate(table.names) if name in {"SINCE", "FIRST SEEN"}}
        return [tuple(cell.text for i, cell in enumerate(row) if i not in times) for row in table.rows]

    def _table(self, answer: MappingAnswer, *, wide: bool) -> Table:
        return holders_table(answer, self._filters, wide=wide, sort_by=self._output.sort_by)

    def _status(self, answer: MappingAnswer) -> Text:
        at = f"{clock_time(self._at, self._clock())}Z"
        if self._reason:
            return Text(visible(f"as of {at}: {self._reason}; trying again", 500), "bold red")
        freshness = {node.freshness for node in answer.nodes} - {"fresh"}
        state = f", {', '.join(sorted(freshness))}" if freshness and not answer.fleet else ""
        devices = [one for node in answer.nodes for one in node.devices if not is_alternative(one)]
        held = sum(1 for device in devices if device.holders)
        count = f"{held} of {counted(len(devices), 'device')} held"
        style = "bold red" if STALE & freshness else ""
        return Text(f"{visible(answer.origin)}: {count}, as of {at}{state}", style)
