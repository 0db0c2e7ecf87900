"""The command `devicelens completion`, and what bash needs beside click's own."""

import os
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
