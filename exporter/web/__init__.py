"""What people and programs see over HTTP: the status page, the JSON API, events, metrics, health."""
