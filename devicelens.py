"""The front door: the command `devicelens` and its table of sub-commands.

Each sub-command is imported only when it is called: the two processes that run on every node load only what
they use.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from runtime import __version__


class Entry(NamedTuple):
    """Where a sub-command lives (`module:attribute`), and its line in the help."""

    target: str
    summary: str


COMMANDS: Final[dict[str, Entry]] = {
    "demo": Entry("simulator.demo:demo", "The whole system on this machine, with pods that come and go."),
    "exporter": Entry(
        "exporter.cli.exporter:exporter", "The sidecar: who holds what, for Prometheus and people."
    ),
    "plugin": Entry("plugin.cli:plugin", "The device plugin, driven by configuration."),
    "who": Entry("exporter.cli.who:who", "Which pod holds which device."),
    "discover": Entry(
        "plugin.discover:discover", "A dry run: devices, health, and what Allocate would give."
    ),
    "check": Entry(
        "devicelens_check:check", "Configuration files checked: the line, what was found and expected."
    ),
    "explain": Entry(
        "exporter.cli.explain:explain", "One device: how its id reads, who holds it, who says so."
    ),
    "anomalies": Entry(
        "exporter.cli.anomalies:anomalies", "What needs attention, such as a held device that is unhealthy."
    ),
    "history": Entry("exporter.cli.history:history", "Who held which device, from when to when."),
    "healthy": Entry("runtime.healthy:healthy", "Whether this container's process answers: for its probes."),
    "completion": Entry("exporter.cli.completion:completion", "The script for a shell that completes these."),
    "kubelet": Entry("simulator.cli:kubelet", "A simulated kubelet, for authors of plugins and monitors."),
}


_PIPE: Final = 128 + 13
"""The exit status of a process that SIGPIPE ended, as shells report it."""
_REVISION: Final = re.compile(r"[0-9a-f]{7,64}(-dirty)?")


def version(environment: Mapping[str, str]) -> str:
    """The version, with the revision that the image was built of (Dockerfile: DEVICELENS_REVISION)."""
    revision = environment.get("DEVICELENS_REVISION", "")
    return f"{__version__} (revision {revision})" if _REVISION.fullmatch(revision) else __version__


class FrontDoor(click.Group):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """The commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's signature
        """The command itself, imported now."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute = entry.target.split(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.target} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the table's commands for its "Did you mean"."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=COMMANDS, ctx=ctx
            ) from None

    def main(self, *args: Any, **extra: Any) -> Any:
        """As click does; for shell completion, with what bash needs."""
        if "_DEVICELENS_COMPLETE" in os.environ:
            import_module("exporter.cli.completion")
        return super().main(*args, **extra)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The table itself, so that completion imports nothing."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        flags = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name].summary) for name in names), *flags]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command. It ends without a message when the reader of its output is gone."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(_PIPE)
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The table itself, so that --help imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=FrontDoor, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(version(os.environ), prog_name="devicelens")
def main() -> None:
    """Which pod holds which device, on every Kubernetes node, right now."""
    # gRPC's C core would write lines of its own among the structured log's.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


if __name__ == "__main__":
    sys.exit(main())
