"""What a trial stands on: directories, devices, and the processes beside the kubelet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.processes import TREE
from harness.trials.census import Counted
from harness.trials.churn import GPU, SHARED
from harness.trials.fault import FULL, SOURCE

STALE_AFTER = 14.0 if FULL else 30.0
"""Seconds of --stale-after. In `make test` more than a fault takes on a slow machine."""

CONFIGURATION = f"""\
version: 1
resources:
  - {{name: {GPU}, discover: [{{files: {{directory: /etc/gpus}}}}]}}
  - {{name: {SHARED}, discover: [{{files: {{directory: /etc/cards}}}}], share: {{replicas: 3}}}}
"""
DEVICES = {"gpus": 8, "cards": 2}
ALLOCATABLE = {GPU: 8, SHARED: 6}
SPARE = "faults.test/spare"
"""One that may come besides: it has one device, which nothing asks for."""


@dataclass(frozen=True)
class Around:
    """What is particular about a trial's processes.

    `before`: the program that each is run by; `environment` is added to each one's. `history`: the file, if
    it is to be another than one in the trial's directory. `source`: --pods.source. `flags`: further ones of
    the exporter's. `tree`: whose code the first processes run, if not this one's.
    """

    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    history: Path | None = None
    source: str = SOURCE
    stale_after: float = STALE_AFTER
    flags: tuple[str, ...] = ()
    tree: Path = TREE


def prepare(directory: Path) -> None:
    """The host with its devices, and the plugin's configuration."""
    for name, count in DEVICES.items():
        made = directory / "h" / "etc" / name
        made.mkdir(parents=True)
        for number in range(count):
            (made / f"{name[:-1]}-{number}").touch()
    configure(directory)


def configure(directory: Path, *spare: str) -> None:
    """The plugin's configuration, with such further resources; replaced as a whole if there was one."""
    lines = (
        # The kubelet looks health up by id alone: no two resources have the same.
        f"  - {{name: {name}, discover: [{{static: {{devices: [{{name: {name.partition('/')[2]}}}]}}}}]}}\n"
        for name in spare
    )
    path = directory / "plugin.yaml"
    path.with_suffix(".new").write_text(CONFIGURATION + "".join(lines))
    path.with_suffix(".new").replace(path)


def history(directory: Path, around: Around) -> Path:
    """The file that history is kept in."""
    return around.history or directory / "x" / "h.db"


def exporter(directory: Path, around: Around, name: str = "exporter") -> Counted:
    """An exporter; `name` tells those of one trial apart."""
    flags = (
        *("--web.listen-address", "127.0.0.1:0", "--history.path", str(history(directory, around))),
        *("--poll.interval", "1s", "--poll.timeout", "1s", "--stale-after", f"{around.stale_after:g}s"),
        *("--pods.source", around.source, *around.flags),
    )
    return _process("exporter", directory, around, name, flags)


def plugin(directory: Path, around: Around, name: str = "plugin") -> Counted:
    """A plugin likewise; it listens where `plugin_url` says."""
    flags = (
        *("--config", str(directory / "plugin.yaml"), "--host-root", str(directory / "h")),
        *("--web.listen-address", plugin_url(directory, name)),
    )
    return _process("plugin", directory, around, name, flags)


def _process(command: str, directory: Path, around: Around, name: str, flags: tuple[str, ...]) -> Counted:
    return Counted(
        *(command, "--kubelet.root", str(directory / "k"), "--node-name", "n", *flags),
        directory=directory,
        name=name,
        environment=around.environment,
        before=around.before,
        tree=around.tree,
    )


def plugin_url(directory: Path, name: str = "plugin") -> str:
    """Where a plugin is."""
    return f"unix:{directory / name}.sock"
