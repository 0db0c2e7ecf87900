"""A process that keeps history of pods that come and go as quickly as it can, and tells what it has shown.

Run with the file's path; it writes one line for each look: the ids of the rows that a question showed as
ended, after the look was taken in. Started by test_kill.
"""

import itertools
import sys
import time
from pathlib import Path

from exporter.history.archive import HistoryLimits
from harness.lives import Life, key


def main() -> None:
    life = Life(Path(sys.argv[1]), limits=HistoryLimits(30 * 86400.0, 64 << 20), wall=time.time()).start()
    for number in itertools.count():
        held = (key(f"gpu-{slot}", pod=f"p{(number + slot) // 3}") for slot in range(8))
        life.look(*held, after=0.5)
        shown = [str(row.id) for row in life.ask(limit=60).rows if row.end is not None]
        print(*shown, flush=True)


if __name__ == "__main__":
    main()
