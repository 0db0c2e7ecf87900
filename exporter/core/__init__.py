"""What decides, and touches nothing: no grpc, no aiohttp, no clock.

ids        device ids: which physical device is behind a replica or a slice
id_rules   further forms of ids, from a file
advertised what device plugins themselves tell of their devices
model      the snapshot's data: devices, holders, claims, containers
workload   a pod's owner, shortened to what people name
identity   who the pods are, and which of them a holding belongs to
snapshot   the kubelet's answers made into one snapshot
listing, building
           answers and snapshots one after the other: what did not change is taken from before
diff       what changed between two snapshots
holdings   since when each holder holds what it holds
anomalies  what is wrong, judged from one snapshot
placement, attribution, judgement
           what only time tells: needless splits over NUMA nodes, devices that no pod lists, since when
explain, explain_words
           one device: which is meant, and all that is known of it in sentences
address    where an exporter or a plugin is
times      moments in words
history, history_watch, history_joining, history_book
           holdings from their beginning to their end, and which times were looked at
history_query
           what history can be asked
recollection
           what history remembers of the present
state      all that the exporter knows at one moment
"""
