"""Device plugins that report their devices: GET /api/v1/devices of each `--plugin.url`."""
