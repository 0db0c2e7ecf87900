"""What decides, and touches nothing: no grpc, no aiohttp, no clock.

ids        device ids: which physical device is behind a replica or a slice
model      the snapshot's data: devices, holders, claims, containers
workload   a pod's owner, shortened to what people name
identity   who the pods are, and which of them a holding belongs to
snapshot   the kubelet's answers made into one snapshot
diff       what changed between two snapshots
holdings   since when each holder holds what it holds
anomalies  what is wrong, judged from one snapshot
state      all that the exporter knows at one moment
"""
