"""What decides, and imports neither grpc nor aiohttp.

yaml_document, errors
               YAML files with line numbers, and one clear error (of daemon, which both processes share)
model          the configuration language as it is written (msgspec structs)
config         from files' texts to the plans of their resources
adjust         resources that begin with a preset
place          where something is written: values checked, templates compiled, errors with their place
compile_resource, compile_source, compile_health, compile_giving
               from what is written to plans; what contradicts itself is refused
plan           what a resource asks for, templates compiled
schema         the JSON Schema of configuration files
names          the kubelet's rules for resource names, ids and CDI names
selectors      how devices of buses are selected: ids, patterns, ranges
patterns       regular expressions that end soon
templates      Jinja2, sandboxed, strict and bounded
expressions    what a template may contain, and the names that it may use
attributes     the names of the attributes that devices of a source have
device         a device as a source finds it, and as a resource knows it
identify       from what sources found to a resource's devices: match, id, NUMA
identities     ids across resources
cdi_names      CDI names across resources
serials, grouping
               devices called by serial numbers; paths put together into devices
claims         which resource has which physical device
health, damping
               what probes have said of each device, and what follows; flapping damped
uevents        what the kernel says of devices that come and go
inventory      what is advertised: discovery and health merged, tombstones, replicas
allocation, rendering
               the answer to Allocate; what templates give for devices
cdi, prestart  CDI specifications; what is run before a container starts
preference     the answer to GetPreferredAllocation
lifecycle      what a registration needs next
ledger         which device each id stands for, for processes to come
holdings       what pods hold under another name
holders        who holds devices, from the kubelet's answer and from its checkpoint
"""
