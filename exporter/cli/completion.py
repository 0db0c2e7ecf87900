"""The command `devicelens completion`, and what bash needs beside click's own.

Completion: which resources, devices, pods and nodes there are, asked for while somebody types.

Quick or not at all: whatever goes wrong, nothing is offered and nothing is said. A kubelet's socket is not
asked: gRPC takes too long to import.
"""

import os
from collections.abc import Iterator
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
    """bash, which breaks words at `=` and `:`: of an id that has them it replaces only what is behind the
    last one, and so that is all that it may be given.
    """

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH
    _known = ""

    def source(self) -> str:
        """The script. Which bash will read it is not known here."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is typed, and that as far as it is typed."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)
        incomplete = "" if not words or line[-1:].isspace() else words.pop()
        breaking = set(_BREAKS) & set(os.environ.get("COMP_WORDBREAKS", ""))
        breaks = [at for at, character in enumerate(incomplete) if character in breaking]
        self._known = incomplete[: breaks[-1] + 1] if breaks else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """One line of what the script reads."""
        # Of `--url=x` click completes x alone.
        known = self._known if item.value.startswith(self._known) else ""
        return f"{item.type},{item.value[len(known) :]}"


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


_WITHIN: Final = 0.4
"""Seconds for the answer."""
_LIMIT: Final = 1000
"""Words that are offered."""

Items = list[CompletionItem[str]]


def complete_what(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """RESOURCE, and after its `=` its devices."""
    from exporter.cli.select import resource_among  # noqa: PLC0415 -- for this alone, as below

    resource, equals, _ = incomplete.partition("=")
    pairs = sorted(set(_devices(ctx)))
    if not equals:
        return _items({name for name, _ in pairs}, incomplete)
    try:
        name = resource_among({name for name, _ in pairs}, resource) if resource else ""
    except ValueError:
        return []
    known = (device for found, device in pairs if not resource or found == name)
    return _items({f"{resource}={device}" for device in known}, incomplete)


def complete_device(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """RESOURCE=DEVICE, or DEVICE."""
    if "=" in incomplete:
        return complete_what(ctx, param, incomplete)
    pairs = set(_devices(ctx))
    return _items({device for _, device in pairs} | {f"{name}=" for name, _ in pairs}, incomplete)


def complete_pod(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """NAMESPACE/NAME of the pods that hold something."""
    return _items(set(_asked(ctx, _pods)), incomplete)


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:  # noqa: ARG001 -- click's signature
    """Nodes that Prometheus knows."""
    return _items(set(_asked(ctx, _nodes)), incomplete)


def _devices(ctx: click.Context) -> list[tuple[str, str]]:
    return _asked(ctx, _resources_and_devices)


def _asked(ctx: click.Context, question: Any) -> list[Any]:
    try:
        return list(question(ctx))
    except Exception:  # noqa: BLE001 -- whoever types is not to be disturbed
        return []


def _items(words: set[str], incomplete: str) -> Items:
    # What cannot be typed, or would be written over the terminal, is not offered.
    fitting = sorted(word for word in words if word.startswith(incomplete) and word.isprintable())
    return [CompletionItem(word) for word in fitting if not set(word) & set(" \t,'\"`$\\")][:_LIMIT]


def _resources_and_devices(ctx: click.Context) -> Iterator[tuple[str, str]]:
    for told in _present(ctx).told:
        document = told.document
        yield from ((device.resource, device.device) for device in document.devices)
        yield from ((claim.driver, claim.device) for claim in document.claims)


def _pods(ctx: click.Context) -> Iterator[str]:
    for told in _present(ctx).told:
        document = told.document
        holders = [h for one in (*document.devices, *document.claims) for h in one.holders]
        yield from (f"{holder.namespace}/{holder.pod}" for holder in holders)
        yield from (f"{entry.namespace}/{entry.pod}" for entry in document.cpus)


def _nodes(ctx: click.Context) -> Iterator[str]:
    source = _source(ctx)
    if source.kind == "prometheus":
        yield from (told.document.node for told in _present(ctx, everywhere=True).told)


def _source(ctx: click.Context) -> Any:
    from exporter.cli.sources import chosen  # noqa: PLC0415 -- it is what brings these functions in

    flags = {name: ctx.params.get(name) for name in _FLAGS}
    flags["url"] = flags["url"] or _url()
    flags["timeout"] = _WITHIN
    flags["insecure_skip_verify"] = bool(flags["insecure_skip_verify"])
    return chosen(ctx, **flags)  # type: ignore[arg-type] # as click read them


_FLAGS: Final = (
    *("url", "socket", "prometheus", "node", "selector", "token_file", "ca_file", "cert_file", "key_file"),
    *("insecure_skip_verify", "timeout"),
)


def _url() -> str:
    from exporter.cli.common import DEFAULT_URL  # noqa: PLC0415 -- as above

    return DEFAULT_URL


def _present(ctx: click.Context, *, everywhere: bool = False) -> Any:
    from dataclasses import replace  # noqa: PLC0415 -- as above

    from exporter.cli.select import Answer  # noqa: PLC0415 -- as above
    from exporter.cli.who import asked  # noqa: PLC0415 -- as above

    source = _source(ctx)
    if source.kind == "kubelet":
        return Answer((), "")
    return asked(replace(source, node="") if everywhere else source)
