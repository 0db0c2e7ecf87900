"""Prometheus as a source: a whole fleet, now and then, from the families that exporters tell.

Pure:
promql   matchers read and written, nothing of them unescaped
labels   whose a label is: the exporter's own, or the scrape's
answers  the shapes of what Prometheus answers
states   series made into each node's state, as its exporter had it
past     series over time made into holdings

With HTTP:
client   the questions that Prometheus' API takes
fleet    all together: the present, a moment, one device, a time range

Only the standard HTTP API is used (query, query_range, series), so that Thanos, Mimir and others serve too.
"""
