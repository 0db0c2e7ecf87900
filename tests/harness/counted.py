"""Runs devicelens with two more signals, for the census of a process: `python -m harness.counted exporter …`.

On SIGUSR2 the process replaces the file that HARNESS_TASKS names by a JSON object: `tasks` maps the names of
coroutines to the number of asyncio tasks that run them, `code` lists the folders of this project's modules.
On SIGUSR1 the process leaks descriptors, tasks, threads and memory.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType

VARIABLE = "HARNESS_TASKS"
_NUMBERS = itertools.count()
_PACKAGES = ("exporter", "kubelet", "plugin", "runtime")
_LEAKED: list[object] = []
LEAK = 24
"""How much more there is of each after a SIGUSR1, and twice as many MiB."""


def _write_tasks(_number: int, _frame: FrameType | None) -> None:
    # RuntimeError: the loop does not run. OSError: for example, no free descriptor. The census sends the
    # signal again.
    with suppress(RuntimeError, OSError):
        names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
        files = (getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES)
        code = sorted({str(Path(file).parents[1]) for file in files if file is not None})
        target = Path(os.environ[VARIABLE])
        # The next signal may arrive during this handler.
        written = target.with_suffix(f".{next(_NUMBERS)}")
        written.write_text(json.dumps({"tasks": names, "code": code}))
        written.replace(target)


def _leak(_number: int, _frame: FrameType | None) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(LEAK):
        _LEAKED.append(os.open(os.devnull, os.O_RDONLY))
        _LEAKED.append(loop.create_task(asyncio.Event().wait(), name="leaked"))
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        _LEAKED.append(thread)
    _LEAKED.append(b"leaked" * (LEAK << 20 >> 1))


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _write_tasks)
    signal.signal(signal.SIGUSR1, _leak)
    # The handlers must be installed before the import, which takes a while.
    from devicelens import main

    main(prog_name="devicelens")
