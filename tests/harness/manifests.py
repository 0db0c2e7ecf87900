"""The base of deploy/ with components, rendered by kustomize, and accessors for its objects."""

import copy
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from devicelens import main as front_door

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPONENTS = {path.name: path for path in sorted((DEPLOY / "components").iterdir())}

_PRODUCTION = ("history", "prometheus-operator", "networkpolicy", "apiserver", "tls")
COMBINATIONS: dict[str, tuple[str, ...]] = {
    "base": (),
    **{name: (name,) for name in COMPONENTS if name != "passwords"},
    "tls-and-passwords": ("tls", "passwords"),
    "apiserver-and-dra": ("networkpolicy", "apiserver", "dra"),
    "production": _PRODUCTION,
    "production-exporter-only": (*_PRODUCTION, "exporter-only"),
}
"""Sets of components that the tests render on the base: each alone, and some together."""

# A Kubernetes object, a container, a volume.
Mapping = dict[str, Any]


def kustomize(folder: Path) -> str:
    """The YAML that `kubectl apply -k` applies for a folder; skips the test without kustomize and kubectl."""
    program = shutil.which("kustomize") or shutil.which("kubectl")
    if program is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    verb = "build" if Path(program).name == "kustomize" else "kustomize"
    done = subprocess.run(
        [program, verb, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _rendered(name: str) -> list[Mapping]:
    with tempfile.TemporaryDirectory() as folder:
        whole = {
            "resources": [os.path.relpath(DEPLOY / "base", folder)],
            "components": [os.path.relpath(COMPONENTS[part], folder) for part in COMBINATIONS[name]],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(whole))
        return objects(kustomize(Path(folder)))


def objects(text: str) -> list[Mapping]:
    """Every object of a YAML text."""
    return [entry for entry in yaml.safe_load_all(text) if entry is not None]


def documents(name: str) -> list[Mapping]:
    """Every object of the combination of this name."""
    return copy.deepcopy(_rendered(name))


def only(found: list[Mapping], kind: str) -> Mapping:
    """The one object of this kind."""
    (one,) = (entry for entry in found if entry["kind"] == kind)
    return one


def pod_of(name: str) -> Mapping:
    """The DaemonSet's pod in the combination of this name."""
    spec: Mapping = only(documents(name), "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(pod: Mapping, name: str) -> Mapping:
    """The pod's container of this name."""
    (found,) = (entry for entry in pod["containers"] if entry["name"] == name)
    assert isinstance(found, dict)
    return found


def environment(entry: Mapping) -> dict[str, str]:
    """The literal values of a container's environment."""
    return {given["name"]: given["value"] for given in entry.get("env", []) if "value" in given}


def command(name: str) -> click.Command:
    """The devicelens command of this name."""
    found = front_door.get_command(click.Context(front_door), name)
    assert found is not None
    return found


def variables(name: str) -> dict[str, click.Parameter]:
    """The environment variables of a devicelens command, with their options."""
    return {
        variable: option
        for option in command(name).params
        for variable in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }


def parsed(entry: Mapping) -> Mapping:
    """A container's arguments and environment, parsed by its command. Raises click's errors."""
    name, *flags = entry["args"]
    known = variables(name)
    flagged = [
        part
        for variable, value in environment(entry).items()
        if variable in known
        for part in (known[variable].opts[0], value)
    ]
    context = click.Context(front_door)
    with command(name).make_context(name, [*flagged, *flags], parent=context) as made:
        return made.params


def mounts(pod: Mapping) -> Iterator[tuple[str, Mapping, Mapping]]:
    """Each mount as (name of the container, mount, volume)."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for entry in pod["containers"]:
        for mount in entry["volumeMounts"]:
            yield entry["name"], mount, volumes[mount["name"]]
