"""What becomes of the kubelet's socket: replaced, unreadable, a file, gone with its directory."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from harness.trials import places
from harness.trials.fault import Fault
from harness.trials.trial import Around, Trial, trying
from simulator import Faults

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "The kubelet's socket"
KEPT = "The mapping is kept with its age, /-/ready says UNAVAILABLE and why; it is found again"
REPLACED = Fault(
    "socket-replaced",
    GROUP,
    "Another socket takes its place for a second: one where nobody listens, one of a program that is no "
    "kubelet, or one that a link leads to",
    KEPT,
    short=3,
    full=30,
)
UNREADABLE = Fault(
    "socket-unreadable",
    GROUP,
    "Its mode is 000 for a second, for an exporter without capabilities, and then its directory's",
    KEPT,
    short=2,
)
A_FILE = Fault(
    "socket-file",
    GROUP,
    "A regular file takes its place for a second, then a directory",
    KEPT,
    short=2,
)
AWAY = Fault(
    "socket-directory",
    GROUP,
    "Its directory is moved away for a second, with it in it",
    KEPT,
)


@contextmanager
def _nobody(path: Path) -> Generator[None]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        yield
    path.unlink()


@contextmanager
def _no_kubelet(path: Path) -> Generator[None]:
    """Takes connections, says something, and hangs up."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen(16)
        bound.setblocking(False)
        loop = asyncio.get_running_loop()

        def answer() -> None:
            connection, _ = bound.accept()
            with connection:
                connection.send(b"SSH-2.0-OpenSSH_9.9\r\n")

        loop.add_reader(bound, answer)
        try:
            yield
        finally:
            loop.remove_reader(bound)
    path.unlink()


@contextmanager
def _link(path: Path) -> Generator[None]:
    path.symlink_to(path.with_name("aside.sock"))
    yield
    path.unlink()


@contextmanager
def _file(path: Path) -> Generator[None]:
    path.write_text("no socket")
    yield
    path.unlink()


@contextmanager
def _directory(path: Path) -> Generator[None]:
    path.mkdir()
    yield
    path.rmdir()


Place = Callable[[Path], AbstractContextManager[None]]


async def _displaced(fault: Fault, *instead: Place) -> None:
    async with trying(fault) as trial:
        path = trial.kubelet.paths()["pod_resources"]
        aside = path.with_name("aside.sock")
        async for number in trial.rounds():
            place = instead[number % len(instead)]
            async with trial.disturbed():
                path.rename(aside)
                with place(path):
                    over = asyncio.create_task(asyncio.sleep(1.0))
                    if place is not _link:
                        await trial.says("UNAVAILABLE")
                    await over
                aside.rename(path)


async def test_another_socket_takes_its_place() -> None:
    await _displaced(REPLACED, _nobody, _no_kubelet, _link)


async def test_a_file_takes_its_place() -> None:
    await _displaced(A_FILE, _file, _directory)


async def test_it_is_unreadable() -> None:
    async with trying(UNREADABLE, Around(before=places.as_owner_alone())) as trial:
        path = trial.kubelet.paths()["pod_resources"]
        async for number in trial.rounds():
            await _forbidden(trial, path if number % 2 == 0 else path.parent)


async def _forbidden(trial: Trial, path: Path) -> None:
    mode = path.stat().st_mode
    async with trial.disturbed():
        # A connection that is open stays open: only one that is made anew finds out.
        await trial.kubelet.set_faults(Faults(error="INTERNAL"))
        await trial.says("INTERNAL")
        path.chmod(0)
        over = asyncio.create_task(asyncio.sleep(1.0))
        await trial.says("UNAVAILABLE", "no permission")
        await trial.kubelet.set_faults(Faults())
        await over
        path.chmod(mode)


async def test_its_directory_is_moved_away() -> None:
    async with trying(AWAY) as trial:
        directory = trial.kubelet.paths()["pod_resources"].parent
        aside = directory.with_name("moved")
        async for _ in trial.rounds():
            async with trial.disturbed():
                directory.rename(aside)
                # Who keeps a connection open sees nothing of it; who makes a new one does.
                await asyncio.sleep(1.0)
                aside.rename(directory)
