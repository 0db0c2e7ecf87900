"""docs/upgrade.md names what is left on a node, and how a roll-out goes, as the code and deploy/ have it."""

import fnmatch
from pathlib import Path

import yaml

from plugin.serving.sockets import PREFIX, RECORD_ENDING

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "upgrade.md").read_text()


def test_what_is_left_is_named_as_it_is_called() -> None:
    assert f"`.{PREFIX}*{RECORD_ENDING}`" in TEXT
    (removed,) = (line.split("device-plugins/")[1] for line in TEXT.splitlines() if "rm -f" in line)
    assert fnmatch.fnmatch(f".{PREFIX}x{RECORD_ENDING}", removed)


def test_the_roll_out_goes_as_it_says() -> None:
    spec = yaml.safe_load((ROOT / "deploy/base/daemonset.yaml").read_text())["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}
    assert "A tenth of the nodes at a time" in TEXT
    assert spec["minReadySeconds"] == 10
    assert "fails within ten seconds" in " ".join(TEXT.split())
