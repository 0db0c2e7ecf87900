"""Serving an application: listening, protected, bounded, and ending within a second."""

import asyncio
import logging
import resource
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.flags import ListenAddress
from runtime.http.addresses import listen, owned, urls
from runtime.http.connection import HEAD_WITHIN, KEEP_ALIVE, Connection, Hooks, clients_log
from runtime.http.crowd import MOST, allowed
from runtime.http.listener import CALM, HANDSHAKE_WITHIN, Listener
from runtime.http.rules import protect
from runtime.http.traffic import Traffic
from runtime.log import Log
from runtime.protection.rules import OPEN, Protected, Rules

_log = Log("http")


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take; times in seconds. Fewer connections where there are few descriptors."""

    connections: int = MOST
    handshake_within: float = HANDSHAKE_WITHIN
    head_within: float = HEAD_WITHIN
    keep_alive: float = KEEP_ALIVE
    calm: float = CALM


LIMITS: Final = Limits()
_END_WITHIN: Final = 0.5
"""Seconds in which requests that are being answered may be answered still."""


class _NoRequest(logging.Filter):
    """Lets what is no HTTP pass at level debug alone: whoever reaches the port could fill the log with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is to be told."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError) or clients_log.isEnabledFor(logging.DEBUG)


clients_log.addFilter(_NoRequest())


async def serve(
    app: web.Application,
    address: ListenAddress,
    *,
    purpose: str,
    protection: Protected | None = None,
    traffic: Traffic | None = None,
    limits: Limits = LIMITS,
) -> None:
    """Serve `app` at `address` until cancelled; then close within a second, cutting streams short.

    `protection` says what is asked of clients; `traffic` is counted in.
    Raises Fatal when the address cannot be listened on, saying which and why.
    """
    counted = traffic or Traffic()

    def rules() -> Rules:
        return OPEN if protection is None else protection.rules

    protect(app, rules, counted)
    runner = web.AppRunner(
        app, access_log=None, logger=clients_log, handle_signals=False, shutdown_timeout=_END_WITHIN
    )

    def make(hooks: Hooks) -> Connection:
        server = runner.server
        if server is None:
            raise TypeError("a runner that was set up has a server")
        return Connection(server, hooks, keep_alive=limits.keep_alive, head_within=limits.head_within)

    async with AsyncExitStack() as stack:
        sockets = await listen(address)
        stack.enter_context(owned(address))
        listener = Listener(
            sockets,
            make,
            rules=rules,
            traffic=counted,
            most=allowed(_descriptors(), limits.connections),
            handshake_within=limits.handshake_within,
            calm=limits.calm,
        )
        # In this order backwards: none more, those that are being answered, what is left.
        stack.push_async_callback(listener.end)
        stack.push_async_callback(runner.cleanup)
        stack.callback(listener.stop)
        await runner.setup()
        listener.start()
        for url in urls(sockets, address, "http" if rules().tls is None else "https"):
            _log.info("listening", purpose=purpose, url=url)
        await asyncio.Event().wait()


def _descriptors() -> int | None:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
