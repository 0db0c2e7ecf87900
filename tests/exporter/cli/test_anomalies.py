"""devicelens anomalies, against an exporter."""

import json

import pytest
from msgspec.structs import replace

from exporter.mapping.model import Anomaly, Holder
from exporter.mapping.state import State
from harness.application import application
from harness.commands import against, devicelens
from harness.mappings import NOW, STATE

HOLDER = Holder("ml", "one", "main", "uid-1")
FOUND = (
    Anomaly("unhealthy_held", "nvidia.com/gpu", "GPU-0", HOLDER, "it is not allocatable", since=NOW - 60),
    Anomaly("unattributed", "nvidia.com/gpu", "GPU-1", evidence="no pod lists it", since=NOW - 3600),
)
ILL = replace(STATE, anomalies=FOUND)


async def test_anomalies_are_listed_with_their_evidence() -> None:
    result = await against(application(ILL, NOW), "anomalies")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "KIND            RESOURCE        DEVICE  NAMESPACE/POD  SINCE              EVIDENCE",
        "unattributed    nvidia.com/gpu  GPU-1                  21:41:03Z (1 h)    no pod lists it",
        "unhealthy_held  nvidia.com/gpu  GPU-0   ml/one         22:40:03Z (1 min)  it is not allocatable",
        "",
        "2 anomalies: 1 unattributed, 1 unhealthy_held",
    ]
    document = await against(application(ILL, NOW), "anomalies", "-o", "json")
    assert [entry["kind"] for entry in json.loads(document.stdout)["anomalies"]] == [
        "unattributed",
        "unhealthy_held",
    ]


async def test_a_node_without_anomalies_is_0() -> None:
    result = await against(application(STATE, NOW), "anomalies")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "devicelens: no anomalies on worker-3\n"
    unknown = await against(application(State(), NOW), "anomalies")
    assert (unknown.exit_code, unknown.stdout) == (1, "")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (("--socket", "/x"), "--socket: a kubelet reports no anomalies, query an exporter"),
        (("--prometheus", "http://x"), "--prometheus: anomalies queries exporters: use --url"),
    ],
)
async def test_other_sources_are_refused(source: tuple[str, ...], words: str) -> None:
    result = await devicelens("anomalies", *source)
    assert result.exit_code == 2
    assert words in result.stderr
