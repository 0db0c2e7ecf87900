"""The configuration language as it is written: one struct for each mapping of a document.

The structs hold what the file says, templates still as text.

common    kinds of values that several parts share
paths     sources that look at paths, and `static`, which is told
buses     sources that walk sysfs by bus and class
others    sources of their own kind
health    probes
giving    what a container gets
document  a whole file
"""

from plugin.core.model.buses import Drm, Infiniband, Kfd, Net, Pci
from plugin.core.model.common import Command, Duration, NumaNode, TemplateText, Texts
from plugin.core.model.document import AnySource, Document, Resource, Share, Source
from plugin.core.model.giving import Allocate, CdiSpec, DeviceNode, MountPoint, PreStart, SideFile
from plugin.core.model.health import ExecProbe, FileProbe, HttpProbe, Probe, XidProbe
from plugin.core.model.others import Exec, Nvidia, Sysfs, SysfsFile, Usb
from plugin.core.model.paths import Files, Glob, Group, GroupMember, Regex, Static, StaticDevice

__all__ = [
    "Allocate",
    "AnySource",
    "CdiSpec",
    "Command",
    "DeviceNode",
    "Document",
    "Drm",
    "Duration",
    "Exec",
    "ExecProbe",
    "FileProbe",
    "Files",
    "Glob",
    "Group",
    "GroupMember",
    "HttpProbe",
    "Infiniband",
    "Kfd",
    "MountPoint",
    "Net",
    "NumaNode",
    "Nvidia",
    "Pci",
    "PreStart",
    "Probe",
    "Regex",
    "Resource",
    "Share",
    "SideFile",
    "Source",
    "Static",
    "StaticDevice",
    "Sysfs",
    "SysfsFile",
    "TemplateText",
    "Texts",
    "Usb",
    "XidProbe",
]
