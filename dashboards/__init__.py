"""Grafana dashboards and Prometheus rules, made by code: `make dashboards` writes what is in git.

`recording` and `joins` make the recording rules, `alerts` and its parts the alerts; `fleet`, `node`,
`workload` and `device` a dashboard each, out of `panels`, `variables` and `links`. `files` knows which file
is made of what. The results lie in rules/ and grafana/; runbooks/ is written by hand, one for each alert.

A tool of the project's, not a part of what runs on nodes: nothing there imports it.
"""
