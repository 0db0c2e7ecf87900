"""What looks at the host: where devices are found, where they sit, and what to follow.

host      the host's file system below its root, links never leading out of it
source    what a source is
sources   which one serves which part of a configuration
files     every regular file of a directory
glob      every path that matches a pattern
static    devices that are written down
topology  NUMA nodes by walking up sysfs
survey    one look at everything a resource wants to know
offload   blocking looks in threads, bounded in time
follow    directories followed between two surveys
"""
