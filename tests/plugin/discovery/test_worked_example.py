"""CONTRIBUTING.md's worked example of a source: its steps lead to devices, in a copy of the plugin."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from harness.hosttree import HostTree

PROJECT = Path(__file__).parents[3]
SECTION = (PROJECT / "CONTRIBUTING.md").read_text().split("\n## A source of devices\n")[1].split("\n## ")[0]
CODELESS, *_ = re.findall(r"^```yaml\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
MODULE, FIELD = (
    dedent(text) for text in re.findall(r"```python\n(.*?) *```$", SECTION, re.MULTILINE | re.DOTALL)
)
RESOURCE = """\
- name: example.com/mtd
  discover: [{mtd: {labels: ["u*"]}}]
  allocate:
    devices: [{host: "{{ node }}"}]
    env: {LABELS: "{{ devices | map(attribute='attrs.label') | join(',') }}"}
"""


@pytest.fixture
def host_with_flash(host: Path) -> Path:
    tree = HostTree(host)
    for number, label in enumerate(("u-boot", "kernel")):
        tree.file(f"/sys/class/mtd/mtd{number}/name", label)
        tree.file(f"/sys/class/mtd/mtd{number}/type", "nor")
        tree.file(f"/sys/class/mtd/mtd{number}/size", "524288")
        tree.directory(f"/sys/class/mtd/mtd{number}ro")
        tree.file(f"/dev/mtd{number}")
    return host


def discovered(host: Path, resources: str, plugins: Path) -> Any:
    """The one resource that `devicelens discover` finds, with the modules of `plugins`."""
    file = plugins / "plugin.yaml"
    file.write_text("version: 1\nresources:\n" + "".join(f"  {line}\n" for line in resources.splitlines()))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "devicelens",
            "discover",
            f"--config={file}",
            f"--host-root={host}",
            "-o",
            "json",
        ],
        env={**os.environ, "PYTHONPATH": f"{plugins}:{PROJECT}"},
        cwd=plugins,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (resource,) = json.loads(done.stdout)["resources"]
    return resource


def test_the_steps_make_a_source(host_with_flash: Path, tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "plugin", tmp_path / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "plugin/discovery/mtd.py").write_text(MODULE)
    registry = tmp_path / "plugin/discovery/registry.py"
    text = registry.read_text().replace(
        "\n\n\nclass Source(", "\nfrom plugin.discovery.mtd import Mtd\n\n\nclass Source("
    )
    field = "".join(f"    {line}\n" for line in FIELD.splitlines())
    registry.write_text(text.replace("\n    files: Files", f"\n{field}    files: Files", 1))
    resource = discovered(host_with_flash, RESOURCE, tmp_path)
    (device,) = resource["devices"]
    assert (device["id"], device["nodes"]) == ("mtd0", ["/dev/mtd0"])
    (allocation,) = resource["allocations"]
    assert allocation["answer"]["envs"] == {"LABELS": "u-boot"}


def test_the_source_sysfs_needs_no_code(host_with_flash: Path, tmp_path: Path) -> None:
    resource = discovered(host_with_flash, CODELESS, tmp_path)
    assert [(device["id"], device["attributes"]["label"]) for device in resource["devices"]] == [
        ("mtd0", "u-boot"),
        ("mtd1", "kernel"),
    ]
