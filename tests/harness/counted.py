"""devicelens as it is, but for one more signal: on SIGUSR2 it tells which of asyncio's tasks there are.

Nothing outside a process can count its tasks. `python -m harness.counted exporter …`; the file that
HARNESS_TASKS names is then replaced by a JSON object: coroutines' names, and how many tasks run each.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

VARIABLE = "HARNESS_TASKS"


def _tell(_number: int, _frame: FrameType | None) -> None:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return  # the loop does not run yet, or not any more
    names = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in tasks)
    told = Path(os.environ[VARIABLE])
    written = told.with_suffix(".new")
    written.write_text(json.dumps(names))
    written.replace(told)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, _tell)
    # Only now: the signal must find its handler from the start.
    from devicelens import main

    main(prog_name="devicelens")
