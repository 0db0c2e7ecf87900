"""What decides, and imports neither grpc nor aiohttp.

yaml_document  a YAML file read with its line numbers, bounded and without surprises
errors         one clear error for a file: place, what was found, what was expected
model          the configuration language as it is written (msgspec structs)
places         keys and values of a document checked against the model, with advice
plan           what a resource asks for, templates compiled
config         from a file's text to the plans of its resources
names          the kubelet's rules for resource names, ids and CDI names
templates      Jinja2, sandboxed, strict and bounded
expressions    what a template may contain, and the names that it may use
device         a device as a source finds it, and as a resource knows it
identify       from what sources found to a resource's devices: match, id, NUMA
identities     ids across resources
inventory      what is advertised: discovery and health merged, tombstones, replicas
allocation     the answer to Allocate
preference     the answer to GetPreferredAllocation
lifecycle      what a registration needs next
holders        who holds devices, from the kubelet's answer and from its checkpoint
"""
