"""Grafana dashboards, alerts and recording rules as code. `make dashboards` writes the files that are in git.

`recording` has the recording rules of devicelens' own metrics, `utilisation` those that join them with other
exporters' metrics, `alerts` the alerts. `fleet`, `node`, `workload` and `device` are one dashboard each, built from
`panels`, `board` and `links`. `generate` writes rules/ and grafana/; runbooks/ has one handwritten page for each alert.

No process on a node imports this package.
"""
