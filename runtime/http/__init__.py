"""Serving aiohttp applications over TCP or a unix socket, with TLS, users and limits; clients of HTTP.

server       listening, accepting, the end within a second
connection   limits of connections and of requests' heads; counts and metrics
app          middlewares: security headers, errors as problem documents, bounded answers
access       who has access: client certificates, users with passwords
client       what clients share: credentials, TLS, answers of limited size
web_config   `--web.config.file`: read, checked, reloaded (imported only where it is given)
"""
