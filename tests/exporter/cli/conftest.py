"""A kubelet's recorded answers."""

import pytest

from harness.recordings import RECORDINGS
from simulator import Replay


@pytest.fixture
def recorded() -> Replay:
    name = "init-sidecar-guaranteed-and-completed-job"
    return Replay(
        (RECORDINGS / f"{name}.list.binpb").read_bytes(),
        (RECORDINGS / f"{name}.allocatable.binpb").read_bytes(),
    )
