"""docs/dashboards.md: Prometheus and Grafana load what it says."""

import re
import shlex
from pathlib import Path

import yaml

from dashboards.generate import DOCUMENT, boards
from dashboards.links import Addresses
from harness.markdown import fences
from harness.prometheus import promtool

TEXT = DOCUMENT.read_text()


async def test_prometheus_takes_its_configurations(tmp_path: Path) -> None:
    blocks = [block for kind, block in fences(TEXT) if kind == "yaml prometheus"]
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        configuration = yaml.safe_load(block)
        for job in configuration["scrape_configs"]:
            # Debian's Prometheus is built without it.
            assert job.pop("kubernetes_sd_configs")[0]["role"] == "pod"
        path.write_text(yaml.safe_dump(configuration))
        status, out = await promtool("check", "config", "--syntax-only", "--lint=all", path)
        assert status == 0, out
        assert "SUCCESS" in out


def test_every_block_is_what_it_says() -> None:
    for kind, block in fences(TEXT):
        if kind == "console":
            assert all(shlex.split(line.removeprefix("$ ")) for line in block.splitlines())
        else:
            assert isinstance(yaml.safe_load(block), dict)


def test_every_dashboard_and_variable_is_in_it() -> None:
    for uid, board in boards(Addresses()).items():
        assert f"`{uid}`" in TEXT
        for variable in board["templating"]["list"]:
            assert f"`{variable['name']}`" in TEXT


def test_the_page_s_address_can_be_made_as_it_says() -> None:
    (page,) = re.findall(r"PAGE='([^']+)'", TEXT)
    assert Addresses(page=page).page_label == "node"
