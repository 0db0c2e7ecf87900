"""deploy/ as it is applied: the rendered documents, and what is asked of them again and again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from devicelens import main as front_door

DEPLOY = Path(__file__).parents[2] / "deploy"
RENDERED = sorted((DEPLOY / "rendered").glob("*.yaml"))

# A Kubernetes object, a container, a volume: documents as they are written.
Mapping = dict[str, Any]


def documents(path: Path) -> list[Mapping]:
    """Every object of a file."""
    return [entry for entry in yaml.safe_load_all(path.read_text()) if entry is not None]


def only(objects: list[Mapping], kind: str) -> Mapping:
    """The one object of this kind."""
    (found,) = (entry for entry in objects if entry["kind"] == kind)
    return found


def pod_of(path: Path) -> Mapping:
    """The DaemonSet's pod."""
    spec: Mapping = only(documents(path), "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(pod: Mapping, name: str) -> Mapping:
    """The pod's container of this name."""
    (found,) = (entry for entry in pod["containers"] if entry["name"] == name)
    assert isinstance(found, dict)
    return found


def environment(entry: Mapping) -> dict[str, str]:
    """What a container's environment says outright."""
    return {given["name"]: given["value"] for given in entry.get("env", []) if "value" in given}


def command(name: str) -> click.Command:
    """The real command."""
    found = front_door.get_command(click.Context(front_door), name)
    assert found is not None
    return found


def variables(name: str) -> dict[str, click.Parameter]:
    """The real command's environment variables, with the flag that each stands for."""
    return {
        variable: option
        for option in command(name).params
        for variable in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }


def parsed(entry: Mapping) -> Mapping:
    """What the real command makes of a container's arguments and environment. Raises click's errors."""
    name, *flags = entry["args"]
    known = variables(name)
    told = [
        part
        for variable, value in environment(entry).items()
        if variable in known
        for part in (known[variable].opts[0], value)
    ]
    context = click.Context(front_door)
    with command(name).make_context(name, [*told, *flags], parent=context) as made:
        return made.params


def mounts(pod: Mapping) -> Iterator[tuple[str, Mapping, Mapping]]:
    """(the container's name, a mount of it, the volume that it mounts)."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for entry in pod["containers"]:
        for mount in entry["volumeMounts"]:
            yield entry["name"], mount, volumes[mount["name"]]
