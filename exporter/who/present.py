"""The present, or a fleet's past moment, of whichever source was chosen."""

import time

import click

from daemon.flags import default_node_name
from daemon.text import visible
from exporter.who.common import CouldNot, Nothing
from exporter.who.door import AskError, Door, NobodyError
from exporter.who.model import Answer
from exporter.who.sources import Source


def present(source: Source, at: float | None = None) -> Answer:
    """Who holds what, now or (Prometheus alone) at unix time `at`.

    Raises what a command ends with: CouldNot, Nothing, BadParameter.
    """
    try:
        return asked(source, at)
    except NobodyError as error:
        if source.matchers or source.node:
            raise Nothing(str(error)) from error
        raise CouldNot(str(error)) from error
    except AskError as error:
        raise CouldNot(str(error)) from error


def asked(source: Source, at: float | None = None) -> Answer:
    """The same; raises AskError where it could not be asked."""
    match source.kind:
        case "exporter":
            from exporter.who import exporter  # noqa: PLC0415 -- each source for itself

            return exporter.present(source.door(), timeout=source.timeout)
        case "kubelet":
            return _of_kubelet(source)
        case _:
            return _of_fleet(source, source.door(), at)


def _of_kubelet(source: Source) -> Answer:
    from exporter.who import kubelet  # noqa: PLC0415 -- gRPC takes a while to import

    try:
        return kubelet.present(
            source.kubelet(), node=default_node_name(), timeout=source.timeout, clock=time.time
        )
    except ValueError as error:
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error


def _of_fleet(source: Source, door: Door, at: float | None) -> Answer:
    from exporter.who.prometheus.client import Prometheus  # noqa: PLC0415 -- for this way alone
    from exporter.who.prometheus.fleet import Scope, present  # noqa: PLC0415 -- as above

    return present(Prometheus(door, timeout=source.timeout), Scope(source.matchers, source.node), at)
