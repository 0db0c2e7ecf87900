"""Serving a resource: registration, endpoint, Allocate and what it puts on the host, metrics, HTTP."""
