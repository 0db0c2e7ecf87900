"""The fault suite's ground: a node on which things go wrong, and whoever watches what is told meanwhile.

fault      a fault, declared: what is done, how often, what must hold
ground     what it stands on: directories, devices, both processes
owners_check all holders that an exporter reports, compared with the true ones
trial      a simulated kubelet here, the plugin and the exporter as processes, rounds of a fault, the verdict
churn      pods that come and go meanwhile
observer   a steady reader of /metrics and the API, who knows the truth
census     what a process holds: descriptors, threads, tasks, memory; and what lies in directories
clients    clients of HTTP as nobody wants them
places     file systems, limits and rights that can be taken away and given back
clock      a clock that jumps, for one process alone
row        what came of it, as a row of docs/reliability.md
"""
