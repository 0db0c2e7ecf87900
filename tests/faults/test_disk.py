"""History's disk is full, read-only, and what is on it is damaged; and the plugin can write nothing."""

import asyncio
import json
import random
import resource
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from exporter.history.file import DAMAGED_KEPT
from harness import owners
from harness.trials import ground, places
from harness.trials.fault import Fault
from harness.trials.ground import SPARE
from harness.trials.owners_check import owners_in
from harness.trials.trial import Around, Trial, trying
from harness.waiting import until
from simulator import SimulatedKubelet

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "History's disk"
KEPT = "Owners are told as ever; what happens meanwhile is in history afterwards"
DISK_FULL = Fault("disk-full", GROUP, "It is full while pods come and go for 2 s", KEPT)
FAILING = Fault(
    "disk-fails",
    GROUP,
    "Every write to it fails while pods come and go for 2 s",
    KEPT,
)
READ_ONLY = Fault(
    "disk-read-only",
    GROUP,
    "It is read-only when the exporter starts, and can be written 2 s later",
    KEPT,
)
PLUGINS = Fault(
    "plugin-disk-fails",
    GROUP,
    "Every write of the plugin fails while its configuration gets another resource and the kubelet restarts",
    "All resources are served, that one too",
    full=10,
    withdraws=True,
)
DAMAGED = Fault(
    "history-damaged",
    GROUP,
    "Its file and journal are overwritten while the exporter runs, which is then killed; or the file's head "
    "while there is none; or it is taken away",
    "Owners are told as ever; what is damaged is moved aside, three such files are kept at most",
    short=3,
    full=30,
)
_FOUND = "history file is damaged: moved it aside"


@contextmanager
def _full(disk: Path) -> Generator[None]:
    ballast = places.fill(disk)
    yield
    ballast.unlink()


@contextmanager
def _failing(pid: int) -> Generator[None]:
    """No file of this process may grow: whatever it writes is refused as by a disk that fails."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_the_disk_is_full() -> None:
    with places.small_disk() as disk:
        async with trying(DISK_FULL, Around(history=disk / "h.db")) as trial:
            async for _ in trial.rounds():
                with _full(disk):
                    pods = await _unwritten(trial, "history cannot be written", "no space left")
                await trial.recovers()
                await _is_in_history(trial, pods)


async def test_every_write_fails() -> None:
    async with trying(FAILING) as trial:
        async for _ in trial.rounds():
            with _failing(trial.exporter.pid):
                pods = await _unwritten(trial, "history cannot be written", "reading or writing it fails")
            await trial.recovers()
            await _is_in_history(trial, pods)


async def test_every_write_of_the_plugin_fails() -> None:
    async with trying(PLUGINS) as trial:
        async for number in trial.rounds():
            spare = f"{SPARE}-{number}"
            async with trial.disturbed():
                with _failing(trial.plugin.pid):
                    ground.configure(trial.directory, spare)
                    await trial.kubelet.restart()
                    await trial.kubelet.wait_until(partial(_offers, spare), limit=60)
                ground.configure(trial.directory)


def _offers(name: str, kubelet: SimulatedKubelet) -> bool:
    return kubelet.allocatable(name) == 1


async def test_the_disk_is_read_only() -> None:
    with places.small_disk() as disk:
        async with trying(READ_ONLY, Around(history=disk / "h.db")) as trial:
            async for _ in trial.rounds():
                async with trial.without_exporter():
                    await trial.exporter.stop()
                    # The kernel makes nothing read-only that is open for writing.
                    places.mount_again(disk, "ro")
                pods = await _unwritten(trial, "keeping history in memory", "Read-only file system")
                places.mount_again(disk, "rw")
                await trial.recovers()
                await _is_in_history(trial, pods)


async def _unwritten(trial: Trial, event: str, reason: str) -> set[str]:
    """Pods come and go for a while, and history says that it cannot be written. Returns the pods that the
    exporter showed.
    """
    seen: set[str] = set()
    async with trial.churning():
        over = asyncio.create_task(asyncio.sleep(2.0))
        while not over.done():
            status, text = await owners.get(trial.url, "/api/v1/devices")
            if status == 200:  # an exporter that has just started has no mapping yet
                seen |= {owner.pod for owner in owners_in(json.loads(text))}
            await asyncio.sleep(0.1)
        assert reason in await trial.exporter.line(event, limit=60.0)
    assert seen
    return seen


async def _is_in_history(trial: Trial, pods: set[str]) -> None:
    """All of them, whether they are still there or not."""
    document = await owners.get_json(trial.url, "/api/v1/history?limit=1000")
    assert document["kept_in"] == "file"
    assert pods <= {row["pod"] for row in document["holdings"]}


async def test_its_file_is_damaged() -> None:
    order = random.Random(1)
    async with trying(DAMAGED) as trial:
        # As many as are kept, with what SQLite has beside each.
        for companion in ("", "-wal", "-shm"):
            trial.new_files[f"x/h.db.damaged-*{companion}"] = DAMAGED_KEPT
        async for number in trial.rounds():
            trial.exporter.lines.clear()
            await _damage(trial, number % 3, order)
            await trial.recovers()
        aside = [path for path in trial.history.parent.glob("*.damaged-*") if path.name.endswith("Z")]
        assert len(aside) <= DAMAGED_KEPT


async def _damage(trial: Trial, kind: int, order: random.Random) -> None:
    path = trial.history
    if kind == 2:
        async with trial.churning():
            path.unlink()
            await trial.exporter.line("the history file was deleted or replaced", limit=60.0)
        return
    if kind == 0:
        # Whoever ends leaves all of it in one file. It is overwritten while it is open; that is found when
        # SQLite reads what it has not in memory, at the latest by the next process.
        async with trial.without_exporter():
            await trial.exporter.stop()
        async with trial.churning():
            await until("history has found its file", lambda: _kept_in(trial, "file"))
            _overwrite(path, order, begin=4096)
            _overwrite(path.with_name(f"{path.name}-wal"), order, begin=0)
            await asyncio.sleep(1.0)
        if any(_FOUND in line for line in trial.exporter.lines):
            return
    async with trial.without_exporter():
        await (trial.exporter.kill() if kind == 0 else trial.exporter.stop())
        if kind == 1:
            _overwrite(path, order, begin=0)
    async with trial.churning():
        await trial.exporter.line(_FOUND, limit=60.0)


async def _kept_in(trial: Trial, place: str) -> bool:
    document = await owners.get_json(trial.url, "/api/v1/history")
    return bool(document["kept_in"] == place and document["holdings"])


def _overwrite(path: Path, order: random.Random, *, begin: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(order.randbytes(max(4096, path.stat().st_size - begin)))
