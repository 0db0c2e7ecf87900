"""The checkpoint file."""

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.recordings import RECORDINGS
from kubelet.pb.deviceplugin.v1beta1 import api_pb2
from simulator import checkpoint
from simulator.checkpoint import Checkpoint, CorruptCheckpointError, Entry

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
entries = st.builds(
    Entry,
    pod_uid=texts,
    container=texts,
    resource=texts,
    devices=st.dictionaries(st.integers(-1, 3), st.lists(texts, max_size=3).map(tuple), max_size=3),
    response=st.binary(max_size=20),
)


@given(
    st.lists(entries, max_size=4), st.dictionaries(texts, st.lists(texts, max_size=3).map(tuple), max_size=3)
)
def test_what_is_written_is_read_back(
    given_entries: list[Entry], registered: dict[str, tuple[str, ...]]
) -> None:
    kept = Checkpoint(tuple(given_entries), registered)
    assert checkpoint.decode(checkpoint.encode(kept)) == kept


@given(st.binary(max_size=60))
def test_garbage_is_corrupt_and_nothing_worse(content: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        checkpoint.decode(content)


def entry(devices: str, response: str) -> str:
    described = f'"DeviceIDs":{devices},"AllocResp":"{response}"'
    entries = f'[{{"PodUID":"u","ContainerName":"c","ResourceName":"r",{described}}}]'
    return f'{{"Data":{{"PodDeviceEntries":{entries},"RegisteredDevices":{{}}}}}}'


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "null",
        '{"Data":1}',
        '{"Data":{"PodDeviceEntries":[{}],"RegisteredDevices":{}}}',
        entry('{"x":["a"]}', ""),
        entry("{}", "%"),
        "[" * 100_000,
    ],
)
def test_the_wrong_shape_is_corrupt(content: str) -> None:
    with pytest.raises(CorruptCheckpointError):
        checkpoint.decode(content.encode())


def test_it_has_the_shape_of_a_real_one() -> None:
    recorded = (RECORDINGS / "kubelet_internal_checkpoint.json").read_bytes()
    kept = checkpoint.decode(recorded)
    assert [sorted(entry.devices[0]) for entry in kept.entries] == [
        ["dev-3", "dev-4"],
        ["dev-2", "dev-5"],
        ["dev-6", "dev-7"],
        ["dev-0"],
    ]
    answers = [api_pb2.ContainerAllocateResponse.FromString(entry.response) for entry in kept.entries]
    assert [dict(answer.envs) for answer in answers][-1] == {"DEVS": "dev-0"}
    real, ours = json.loads(recorded), json.loads(checkpoint.encode(kept))
    assert isinstance(ours.pop("Checksum"), type(real.pop("Checksum")))
    assert ours == real
    assert checkpoint.encode(kept).startswith(recorded[: recorded.index(b',"Checksum"')])


def test_nothing_allocated_reads_as_null_as_in_go() -> None:
    assert json.loads(checkpoint.encode(Checkpoint()))["Data"] == {
        "PodDeviceEntries": None,
        "RegisteredDevices": {},
    }


def test_it_is_for_its_owner_alone_and_nothing_is_left_beside_it(root: Path) -> None:
    path = root / "kubelet_internal_checkpoint"
    checkpoint.write(path, Checkpoint())
    checkpoint.write(path, Checkpoint())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in root.iterdir()] == [path.name]
    assert checkpoint.read(path) == Checkpoint((), {})


def test_a_missing_one_is_none_and_a_huge_one_corrupt(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "kubelet_internal_checkpoint"
    assert checkpoint.read(path) is None
    checkpoint.write(path, Checkpoint())
    monkeypatch.setattr(checkpoint, "LARGEST", 10)
    with pytest.raises(CorruptCheckpointError, match="larger than 10 bytes"):
        checkpoint.read(path)
