"""The fault suite: a node with injected faults, and an observer that compares every response with the truth.

fault         declares a fault: the action, the number of rounds, what must hold
ground        directories, devices, and both processes
trial         runs the rounds of a fault against a simulated kubelet, the plugin and the exporter
churn         adds, completes and deletes pods during a fault
observer      reads /metrics and the API continuously and records wrong or missing holders
owners_check  compares all holders that an exporter reports with those of the kubelet
census        counts descriptors, threads, tasks, memory and files, to find leaks
clients       misbehaving HTTP clients
places        file systems, limits and permissions that a test revokes and restores
clock         a wall clock that jumps, for one process
previous      an earlier version of the project, for upgrades
row           writes the results for docs/reliability.md
"""
