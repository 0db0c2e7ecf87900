"""What acts: one actor for each resource, and what they share.

clock         time, handed in
tally         what a resource counts
board         the advertised list, as the open streams get it
endpoint      one incarnation of a resource's DevicePlugin server, on a socket of its own
allocator     answers to Allocate, GetPreferredAllocation and PreStartContainer
giving        answers made true on the host, and what of that is kept there
side_files    files written for containers
cdi_files     a resource's CDI specification
belongings    what a resource has put on the host, remembered
predecessors  what processes of the node serve, written down for the next
leftovers     what resources that are no more have left there
prestart      a program run before a container starts
registration  keeps a resource registered, through everything that a kubelet does
by_socket     … by a call to the kubelet's socket
by_directory  … by a socket in the directory that the kubelet watches
registrar     one Register call
lease         one process serves a resource on a node; a second one stands by
pod_resources what the kubelet says of holders and of what it takes for allocatable
resource      one resource: discovery, list, registration, tombstones
reload        the configuration read again when it changes
fleet         the set of resources that is being served
status        what can be said of a resource at this moment
metrics       Prometheus families
web           /metrics, /api/v1/devices, /-/healthy, /-/ready
"""
