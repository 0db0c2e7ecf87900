"""devicelens as it is, but for one more signal: on SIGUSR2 it tells which of asyncio's tasks there are.

Nothing outside a process can count its tasks. `python -m harness.counted exporter …`; the file that
HARNESS_TASKS names is then replaced by a JSON object: `tasks` has coroutines' names, and how many tasks run
each, `code` the folders that this project's modules were read from. On SIGUSR1 it leaks one of everything.
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
LEAK = 10
"""How much more there is of each after a SIGUSR1, and twice as many MiB."""


def _tell(_number: int, _frame: FrameType | None) -> None:
    # RuntimeError: the loop does not run yet, or not any more. OSError: as while descriptors run out. Whoever
    # asks asks again.
    with suppress(RuntimeError, OSError):
        names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
        files = (getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES)
        code = sorted({str(Path(file).parents[1]) for file in files if file is not None})
        told = Path(os.environ[VARIABLE])
        # The next signal may come while this one is answered.
        written = told.with_suffix(f".{next(_NUMBERS)}")
        written.write_text(json.dumps({"tasks": names, "code": code}))
        written.replace(told)


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
    signal.signal(signal.SIGUSR2, _tell)
    signal.signal(signal.SIGUSR1, _leak)
    # Only now: the signal must find its handler from the start.
    from devicelens import main

    main(prog_name="devicelens")
