"""What device plugins tell of their devices: GET /api/v1/devices of each `--plugin.url`.

document  the JSON document, checked and bounded
client    one plugin, asked over HTTP or a unix socket
"""
