"""Results of a trial, for docs/reliability.md: a JSON file in the directory DEVICELENS_ROWS."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness.trials.census import Census

if TYPE_CHECKING:
    from harness.trials.trial import Trial

VARIABLE = "DEVICELENS_ROWS"


def write(
    trial: "Trial", before: Mapping[str, Census], after: Mapping[str, Census], leaks: Sequence[str]
) -> None:
    """Print the row of a trial, and write it if DEVICELENS_ROWS names a directory."""
    fault = trial.fault
    document = {
        "name": fault.name,
        "group": fault.group,
        "what": fault.what,
        "holds": fault.holds,
        "times": fault.times,
        "seconds": round(time.monotonic() - trial.began, 1),
        **asdict(trial.observer.seen),
        "changes": trial.truth.changes,
        "recover": [round(one, 3) for one in trial.recoveries],
        "before": {name: one.document() for name, one in before.items()},
        "after": {name: one.document() for name, one in after.items()},
        "leaks": list(leaks),
        "problems": trial.observer.problems,
        "figures": trial.figures,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if directory := os.environ.get(VARIABLE):
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / f"{fault.name}.json").write_text(text)
