"""The exporter's HTTP interface: pages for people, a JSON API and events for programs, probes and metrics.

Everything is rendered from the current state; no request reaches the kubelet.

app        every route, the probes and /metrics
site       the dependencies of the application, and the freshness of the mapping in words
api        /api/v1/… and /api/openapi.json (openapi.json, made by docs/make_openapi.py)
events     /api/v1/events, server-sent
answers    negotiation, gzip, ETag, JSON, errors
assets     static/: style sheets, JavaScript modules and the icon
pages      the HTML pages
"""
