"""The command `devicelens completion`, and completion of resources, devices, pods and nodes.

Names come from the source of the command line. A kubelet is not queried: gRPC takes too long to import.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from exporter.cli.sources import SourceFlags, choose_source

VARIABLE: Final = "_DEVICELENS_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
_BREAKS: Final = "=:"

_BASH: Final = """\
%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *= ]] && compopt -o nospace
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """bash breaks words at `=` and `:`, and replaces only what follows the last one: each completion is cut
    there.
    """

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH
    _prefix = ""

    def source(self) -> str:
        """The script. click would check the version of a bash that may not be the one that reads it."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the incomplete one, and the incomplete one."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)
        incomplete = "" if not words or line[-1:].isspace() else words.pop()
        breaking = set(_BREAKS) & set(os.environ.get("COMP_WORDBREAKS", ""))
        breaks = [at for at, character in enumerate(incomplete) if character in breaking]
        self._prefix = incomplete[: breaks[-1] + 1] if breaks else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """One line for the script."""
        # For `--url=x` click completes x, without the prefix.
        return f"{item.type},{item.value.removeprefix(self._prefix)}"


add_completion_class(Bash)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes devicelens' commands, flags, resources, devices and pods.

    \b
    bash  source <(devicelens completion bash)
    zsh   source <(devicelens completion zsh)
    fish  devicelens completion fish | source
    """  # noqa: D301 -- \b is click's
    kind = get_completion_class(shell)
    if kind is None:
        raise TypeError(f"click knows no {shell}")
    click.echo(kind(ctx.find_root().command, {}, "devicelens", VARIABLE).source())


_TIMEOUT: Final = 0.4
"""Seconds for the query."""
_LIMIT: Final = 1000
"""Words offered."""
Items = list[CompletionItem[str]]


def complete_what(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """RESOURCE, and after its `=` its devices."""
    resource, equals, _ = incomplete.partition("=")
    pairs = _devices(_nodes(ctx))
    if not equals:
        return _items({name for name, _ in pairs}, incomplete)
    ends = {name for name, _ in pairs if name == resource or name.endswith(f"/{resource}")}
    if resource and resource not in ends and len(ends) != 1:
        return []
    known = {resource} if resource in ends else ends
    return _items(
        {f"{resource}={device}" for name, device in pairs if not resource or name in known}, incomplete
    )


def complete_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """RESOURCE=DEVICE, or DEVICE."""
    if "=" in incomplete:
        return complete_what(ctx, param, incomplete)
    pairs = _devices(_nodes(ctx))
    return _items({device for _, device in pairs} | {f"{name}=" for name, _ in pairs}, incomplete)


def complete_pod(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """NAMESPACE/NAME of the pods that hold something, or NAME after --namespace."""
    namespace = ctx.params.get("namespace")
    pods = _pods(ctx)
    if namespace is None:
        return _items({f"{one}/{name}" for one, name in pods}, incomplete)
    return _items({name for one, name in pods if one == namespace}, incomplete)


def complete_namespace(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """The namespaces of pods that hold something."""
    return _items({namespace for namespace, _ in _pods(ctx)}, incomplete)


def _pods(ctx: click.Context) -> set[tuple[str, str]]:
    """Namespaces and names of the pods that hold something."""
    nodes = list(_nodes(ctx))
    holders = [h for node in nodes for one in node.devices for h in one.holders]
    cpus = [entry for node in nodes for entry in node.cpus]
    return {(one.namespace, one.pod) for one in (*holders, *cpus)}


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """The nodes in Prometheus."""
    return _items({node.node for node in _nodes(ctx, "prometheus")}, incomplete)


def _devices(nodes: Iterable[Any]) -> set[tuple[str, str]]:
    """The names that RESOURCE may have, and their devices."""
    from exporter.cli.select import resource_names  # noqa: PLC0415 -- its structs take long to create

    return {
        (name, device.device) for node in nodes for device in node.devices for name in resource_names(device)
    }


def _nodes(ctx: click.Context, *kinds: str) -> Iterable[Any]:
    """The nodes in the answer of the source; none if it is not of `kinds`, does not answer in time, or the
    flags are wrong: completion prints no errors.
    """
    from exporter.cli.query import current_mapping  # noqa: PLC0415 -- imports an HTTP client

    parameters: dict[str, Any] = {name: ctx.params.get(name) for name in SourceFlags.__slots__}
    # Without a value on the line a parameter is None here, whatever its default.
    given = {name: value for name, value in parameters.items() if value is not None}
    given["timeout"] = _TIMEOUT
    try:
        source = choose_source(ctx, SourceFlags(**given))
        if source.kind not in (kinds or ("exporter", "prometheus")):
            return ()  # gRPC takes too long to import
        return current_mapping(replace(source, node="")).nodes
    except Exception:  # noqa: BLE001 -- an error would disturb the line that is typed
        return ()


def _items(words: set[str], incomplete: str) -> Items:
    # Words that cannot be typed, or would overwrite the terminal, are not offered.
    fitting = sorted(word for word in words if word.startswith(incomplete) and word.isprintable())
    return [CompletionItem(word) for word in fitting if not set(word) & set(" \t,'\"`$\\")][:_LIMIT]
