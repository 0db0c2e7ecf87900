"""What looks at the host: where devices are found, where they sit, and what to follow.

host      the host's file system below its root, links never leading out of it
source    what a source is
sources   which one serves which part of a configuration
files     every regular file of a directory
glob      every path that matches a pattern
static    devices that are written down
sysfs     sysfs read quickly, for the sources that walk it
pci_bus   PCI functions: which, of what kind, virtual ones of which physical one
pci       … the source
interfaces  network interfaces, and the host's default route
net       network functions, the source
rdma      RDMA devices, their nodes and ports
infiniband  … the source
drm_cards   graphics cards and render nodes
drm       … the source
kfd_topology  AMD's compute nodes
kfd       … the source, with partitions
regex     every entry of a directory that matches an expression
group     several paths together
child_nodes  device nodes of what is below a directory of sysfs
walk      directories of sysfs, the source sysfs
usb_bus   USB devices with their child nodes
usb       … the source
command   a program run within bounds
program   … that prints devices, the source exec
nvml      NVIDIA's library
nvidia_driver  what NVIDIA's driver shows in files
nvidia    … the source
nvidia_events  XID events
memory    what sources remember from look to look
topology  NUMA nodes by walking up sysfs
survey    one look at everything a resource wants to know
giving    what Allocate answers, against the host as it is
host_files  files written below the host's root
offload   blocking looks in threads, bounded in time
follow    directories followed between two surveys
"""
