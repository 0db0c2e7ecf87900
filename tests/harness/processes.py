"""devicelens' processes as on a node: started with flags, read by their log, ended by signal."""

import asyncio
import os
import re
import signal
import sys
from collections import deque
from pathlib import Path
from typing import Self

from harness.waiting import LIMIT, until

_URL = re.compile(r"\burl=\"?(https?://[^\s\"]+|unix:[^\s\"]+)")

TREE = Path(__file__).parents[2]


class Process:
    """`devicelens` with `arguments`; keeps its log, and prints it when the test fails."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
        module: str = "devicelens",
        tree: Path = TREE,
    ) -> None:
        """`before`: a program that runs the process in its own place (setpriv …). `module`: what has the
        front door. `tree`: whose code it is.
        """
        self.arguments = arguments
        self.tree = tree
        self._command = (*before, sys.executable, "-m", module)
        self.lines: deque[str] = deque(maxlen=2000)
        self._environment = environment or {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process id of the one that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return None if self._process is None else self._process.returncode

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop()
        if kind is not None:
            print(f"--- devicelens {' '.join(self.arguments)}", *self.lines, sep="\n")

    async def start(self) -> None:
        """Start it, anew if it ran before."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DEVICELENS_")}
        self._process = await asyncio.create_subprocess_exec(
            *(*self._command, *self.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.tree,
            env=environment | {"PYTHONUNBUFFERED": "1"} | self._environment,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, await the end, and return the exit status."""
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.send_signal(number)
        try:
            async with asyncio.timeout(30):
                status = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise AssertionError(f"devicelens {self.arguments[0]} did not end on {number.name}") from None
        assert self._reader is not None
        await self._reader
        return status

    async def kill(self) -> None:
        """End it at once, as the kernel would."""
        await self.stop(signal.SIGKILL)

    async def line(self, part: str, *, limit: float = LIMIT) -> str:
        """The first line of the log that contains `part`."""

        async def found() -> str | None:
            assert self.status is None, f"devicelens {self.arguments[0]} ended with {self.status}"
            return next((line for line in self.lines if part in line), None)

        return await until(f"{part!r} in the log of devicelens {self.arguments[0]}", found, limit=limit)

    async def url(self) -> str:
        """The address it listens on, from its log."""
        match = _URL.search(await self.line("listening"))
        assert match is not None
        return match[1]
