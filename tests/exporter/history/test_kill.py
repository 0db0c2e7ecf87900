"""SIGKILL at any moment loses no holding that had been shown as ended. DEVICELENS_KILLS says how often."""

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from exporter.history.store import Store

KILLS = int(os.environ.get("DEVICELENS_KILLS", "8"))
ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(60 + 5 * KILLS)
def test_returned_end_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    order = random.Random(7)
    path = tmp_path / "history.db"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    shown: set[int] = set()
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("churn.py")), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        # It dies in the midst of whatever follows the last line that is read.
        for _ in range(order.randint(1, 12)):
            line = process.stdout.readline()
            assert line
            shown.update(map(int, line.split()))
        process.kill()
        rest = process.stdout.read()
        process.wait()
        process.stdout.close()
        # A line that was not finished was not shown.
        for whole in rest.splitlines(keepends=True):
            if whole.endswith("\n"):
                shown.update(map(int, whole.split()))
        with Store(path) as store:
            ended = {row.id for row in store.past()}
            held = store.stored().rows
            assert shown <= ended
            assert not ended & {row.id for row in held}
            # What the one before had open is in doubt for the first moments of the next.
            assert len([row for row in held if row.missed is None]) <= 8
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(shown) > KILLS
    assert not list(tmp_path.glob("*.damaged-*"))
