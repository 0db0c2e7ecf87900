"""History after 30 days of churn: how long queries take, what writing costs, how large the file becomes.

The churn goes through the archive as on a node: pods of some containers come and go, two devices at a time,
poll after poll, with a restart of the exporter each day. Beside each query is its floor: the same rows
fetched by their numbers with a bare SELECT from the same file, and decoded. Times are in milliseconds, the
median and the 99th of a hundred, in one process whose caches are cold for neither.
"""

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks.report import Figure, write_section
from exporter.history import sql
from exporter.history.archive import Archive, HistoryLimits, QueryMoment
from exporter.history.coverage import PollSequence, PollTimes
from exporter.history.query import HistoryQuery
from exporter.history.record import HoldingFacts, HoldingKey, HoldingRow, Present
from exporter.history.rows import read_holding, read_present, read_text
from exporter.history.texts import Texts
from runtime.clock import Clock

_DAY: Final = 86400.0
_DAYS: Final = 30
_DEVICES: Final = 16
_PATIENCE: Final = 120.0
_START: Final = 1_790_000_000.0


class Churn:
    """A node on which pods come and go, and its exporter's history."""

    def __init__(self, path: Path, limits: HistoryLimits, order: random.Random) -> None:
        self.wall = _START
        self._path = path
        self._limits = limits
        self._order = order
        self.held: dict[str, tuple[HoldingKey, HoldingFacts]] = {}
        self.taken: list[float] = []
        self.start()

    def start(self) -> None:
        """The exporter, anew."""
        self.sight = PollSequence(_PATIENCE)
        self.archive = Archive(
            self._path, self._limits, doubt=10.0, clock=Clock(lambda: self.wall, lambda: self.wall)
        )
        self.archive.open()

    def poll(self, after: float, *, by_event: bool) -> None:
        """One poll, `after` seconds later."""
        self.wall += after
        found: Present = {key: (facts,) for key, facts in self.held.values()}
        poll = self.sight.add(PollTimes(self.wall, self.wall + 0.003, self.wall), found, by_event=by_event)
        began = time.perf_counter()
        self.archive.take([poll], None)
        self.taken.append(time.perf_counter() - began)
        self.archive.maintain()

    def change(self, number: int) -> None:
        """Another pod takes the devices of one that goes."""
        slot = self._order.randrange(_DEVICES // 2)
        pod = f"training-{self._order.getrandbits(32):08x}-{number % 100}"
        facts = HoldingFacts(f"{self._order.getrandbits(128):032x}", "Job", pod[:17], "", "worker-3")
        for device in (f"GPU-{slot * 2:032x}", f"GPU-{slot * 2 + 1:032x}"):
            resource = "nvidia.com/gpu" if slot % 2 else "example.com/nic"
            names = ("ml" if slot % 3 else "inference", pod, "main")
            self.held[device] = HoldingKey(resource, device, *names), facts


def live(churn: Churn, holdings: int) -> float:
    """Let 30 days pass; the seconds it took."""
    changes = holdings // 2
    pause = _DAYS * _DAY / changes
    began = time.perf_counter()
    for number in range(changes):
        churn.change(number)
        churn.poll(pause, by_event=True)
        if number % (changes // _DAYS) == 0:
            churn.archive.close()
            churn.wall += 20.0
            churn.start()
    return time.perf_counter() - began


def questions(churn: Churn, order: random.Random) -> dict[str, Callable[[], HistoryQuery]]:
    """What people ask, each time of another device, pod or moment."""
    some = list(churn.held.values())

    def moment() -> float:
        return _START + order.random() * _DAYS * _DAY

    def at(**names: str) -> HistoryQuery:
        when = moment()
        return HistoryQuery(since=when, until=when, **names)  # type: ignore[arg-type] # names

    def hours(length: float, **names: str) -> HistoryQuery:
        when = moment()
        return HistoryQuery(since=when, until=when + length * 3600, **names)  # type: ignore[arg-type] # names

    def one() -> tuple[HoldingKey, HoldingFacts]:
        return order.choice(some)

    return {
        "who held what at a moment": at,
        "who held a device at a moment": lambda: at(device=one()[0].device),
        "a device in a range of 6 h": lambda: hours(6, device=one()[0].device),
        "a resource in a range of a day": lambda: hours(24, resource=one()[0].resource),
        "a namespace, all of it": lambda: HistoryQuery(namespace=one()[0].namespace),
        "a pod, all of it": lambda: HistoryQuery(pod=one()[0].pod, namespace=one()[0].namespace),
        "a uid": lambda: HistoryQuery(uid=one()[1].uid),
        "the newest 200": HistoryQuery,
        "the newest 1000": lambda: HistoryQuery(limit=1000),
        "a resource nobody knows": lambda: HistoryQuery(resource="other.example/x"),
    }


def measure(churn: Churn, path: Path, order: random.Random, rounds: int) -> None:
    """Measure each query, and write the section."""
    figures: list[Figure] = []
    with closing(sqlite3.connect(path)) as bare:
        bare.text_factory = read_text
        texts = Texts(bare.execute("SELECT id, text FROM texts"))
        for name, question in questions(churn, order).items():
            took, floor, rows = [], [], []
            for _ in range(rounds):
                query = question()
                now = QueryMoment(churn.sight.last, failing=False, time=churn.wall, patience=_PATIENCE)
                began = time.perf_counter()
                found = churn.archive.find(query, now)
                took.append(1000 * (time.perf_counter() - began))
                numbers = [row.id for row in found.rows]
                began = time.perf_counter()
                fetched = fetch(bare, texts, numbers)
                floor.append(1000 * (time.perf_counter() - began))
                assert {row.id for row in fetched} == set(numbers)
                rows.append(len(numbers))
            what = f"{name}: {statistics.mean(rows):.0f} rows"
            figures.append(Figure(what, took, "ms", floor, "at most 20 ms"))
    number, size = churn.archive.condition.rows, path.stat().st_size
    write_section(
        "History",
        f"{_DAYS} days of churn, {number} holdings in a file of "
        f"{size / (1 << 20):.0f} MiB, {size / number:.0f} bytes each. Floor: a bare SELECT of the same rows.",
        [Figure("a change, written", [1000 * seconds for seconds in churn.taken], "ms"), *figures],
    )


def fetch(bare: sqlite3.Connection, texts: Texts, numbers: Sequence[int]) -> list[HoldingRow]:
    """The rows of these numbers, as directly as SQLite can."""
    count = len(numbers)
    return [
        *(read_present(values) for values in bare.execute(sql.fetch_some("present", count), numbers)),
        *(
            read_holding(values, texts.text)
            for values in bare.execute(sql.fetch_some("holdings", count), numbers)
        ),
    ]


def main(holdings: int, rounds: int, size: int) -> None:
    """Do it all, and print it."""
    order = random.Random(1)  # noqa: S311 -- a benchmark
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        path = Path(directory) / "history.db"
        churn = Churn(path, HistoryLimits(_DAYS * _DAY, size << 20), order)
        took = live(churn, holdings)
        rows = churn.archive.condition.rows
        files = [path, Path(f"{path}-wal")]
        used = [file.stat().st_size / (1 << 20) for file in files if file.exists()]
        print(
            f"{rows} of {holdings} holdings in {_DAYS} days: {used[0]:.1f} MiB, log {sum(used[1:]):.1f} MiB"
        )
        print(f"{took:.0f} s for all of it")
        measure(churn, path, order, rounds)
        churn.archive.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--holdings", type=int, default=100_000, help="holdings in 30 days")
    parser.add_argument("--rounds", type=int, default=100, help="times that each query is sent")
    parser.add_argument("--size", type=int, default=256, help="what the file may become, in MiB")
    arguments = parser.parse_args()
    main(arguments.holdings, arguments.rounds, arguments.size)
