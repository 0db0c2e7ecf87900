"""What a process holds: descriptors, threads, tasks, memory; and what lies in directories."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.counted import VARIABLE
from harness.processes import TREE, Process
from harness.waiting import until

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TOKEN = re.compile(r"(?<=-)[0-9a-f]{8}(?=\.sock$)|(?<=\.damaged-)\d{8}T\d{6}Z(\.\d+)?")
_KIND = re.compile(r":?\[\d+\]$")


@dataclass(frozen=True, slots=True)
class Granted:
    """By how much a process may hold more than before; `memory` in MiB."""

    descriptors: int = 2
    threads: int = 2
    tasks: int = 1
    memory: float = 8.0


ONCE = Granted(descriptors=6, threads=8, tasks=2, memory=16.0)
"""What a process may make when something happens to it for the first time."""


@dataclass(frozen=True)
class Census:
    """One look at a process. `descriptors` by kind, `tasks` by coroutine, `memory` resident in MiB; `code`:
    the folders that its modules come from.
    """

    descriptors: Counter[str]
    threads: int
    tasks: Counter[str]
    memory: float
    code: tuple[str, ...] = ()

    def beyond(self, before: "Census", granted: Granted) -> str:
        """How far this is beyond `before` and what is granted; "" if it is not."""
        compared = (
            ("descriptors", before.descriptors, self.descriptors, granted.descriptors),
            ("threads", Counter(threads=before.threads), Counter(threads=self.threads), granted.threads),
            ("tasks", before.tasks, self.tasks, granted.tasks),
        )
        found = [
            f"{name} {was.total()} to {now.total()} ({self._words(now - was)})"
            for name, was, now, more in compared
            if now.total() > was.total() + more
        ]
        if self.memory > before.memory + granted.memory:
            found.append(f"memory {before.memory:.1f} to {self.memory:.1f} MiB")
        return ", ".join(found)

    @staticmethod
    def _words(extra: Counter[str]) -> str:
        return ", ".join(f"{count} {name}" for name, count in extra.most_common(5))

    def document(self) -> dict[str, float]:
        """As numbers."""
        return {
            "descriptors": self.descriptors.total(),
            "threads": self.threads,
            "tasks": self.tasks.total(),
            "memory": round(self.memory, 1),
        }


class Counted(Process):
    """A process that can be counted: it tells its tasks, and has a place of its own for temporary files."""

    def __init__(
        self,
        *arguments: str,
        directory: Path,
        name: str,
        environment: Mapping[str, str],
        before: tuple[str, ...] = (),
        tree: Path = TREE,
    ) -> None:
        """`directory` gets the place for temporary files and what tells the tasks, under `name`."""
        self.told = directory / f"tasks-{name}"
        temporary = directory / f"t-{name}"
        temporary.mkdir(exist_ok=True)
        own = {"TMPDIR": str(temporary), VARIABLE: str(self.told), "PYTHONPATH": str(TREE / "tests")}
        super().__init__(
            *arguments,
            environment=own | dict(environment),
            before=before,
            module="harness.counted",
            tree=tree,
        )


async def census(process: Counted) -> Census:
    """Count, by /proc and by the process itself."""
    told = process.told
    told.unlink(missing_ok=True)

    async def tasks() -> bool:
        assert process.status is None, f"{process.arguments[0]} ended with {process.status}"
        os.kill(process.pid, signal.SIGUSR2)
        return told.exists()

    await until("tasks are told", tasks, pause=0.05)
    document = json.loads(told.read_text())
    return Census(
        _descriptors(process.pid),
        sum(1 for _ in Path(f"/proc/{process.pid}/task").iterdir()),
        Counter(document["tasks"]),
        memory(process.pid),
        tuple(document["code"]),
    )


def memory(pid: int) -> float:
    """MiB resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / (1 << 20)


def cpu(pid: int) -> float:
    """Seconds of CPU, to the nanosecond, that the threads there are have used."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def _descriptors(pid: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[_KIND.sub("", str(descriptor.readlink()))] += 1
        except FileNotFoundError:
            continue  # it was closed meanwhile
    return kinds


def files(directory: Path) -> Counter[str]:
    """What lies below a directory, by names: of those made anew each time the fresh part is left out."""
    return Counter(
        _TOKEN.sub("*", str(path.relative_to(directory)))
        for path in directory.rglob("*")
        if not path.is_dir()
    )
