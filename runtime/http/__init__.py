"""Serving aiohttp applications: on TCP or a unix socket, protected, and out of hostile clients' reach.

application  an application with this project's middlewares; errors are problem documents
rules        what --web.config.file asks of each request: a rate, a password, headers
connection   one client's connection: how long and how large a request's head may be
crowd        who is connected, who of them is idle, and who has to go
listener     accepting connections, TLS before HTTP
traffic      what is counted
addresses    sockets that listen, made and taken away again
serving      all of it together, and an end within a second
"""

from runtime.http.application import (
    CONTENT_SECURITY_POLICY,
    LARGE,
    LARGE_AT_ONCE,
    SEND_WITHIN,
    application,
    json_response,
    problem,
)
from runtime.http.connection import KEEP_ALIVE
from runtime.http.serving import Limits, serve
from runtime.http.traffic import Traffic, WebFamilies

__all__ = [
    "CONTENT_SECURITY_POLICY",
    "KEEP_ALIVE",
    "LARGE",
    "LARGE_AT_ONCE",
    "SEND_WITHIN",
    "Limits",
    "Traffic",
    "WebFamilies",
    "application",
    "json_response",
    "problem",
    "serve",
]
