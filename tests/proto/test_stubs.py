"""The committed stubs are those of the sources, and the sources say what the kubelet says on the wire."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor, FileDescriptor, MethodDescriptor

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "kubelet" / "pb"

SOURCES = (
    "podresources/v1/api",
    "podresources/v1alpha1/api",
    "pods/v1alpha1/api",
    "core/v1/pod",
    "deviceplugin/v1beta1/api",
    "pluginregistration/v1/api",
)

WITHOUT_SERVICE = {"core/v1/pod"}

TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
}

# As the kubelet's own API files have it: message → its fields.
DEVICE_PLUGIN = """
Empty:
PreStartContainerResponse:
DevicePluginOptions: bool pre_start_required=1, bool get_preferred_allocation_available=2
RegisterRequest: string version=1, string endpoint=2, string resource_name=3, DevicePluginOptions options=4
ListAndWatchResponse: repeated Device devices=1
Device: string ID=1, string health=2, TopologyInfo topology=3
TopologyInfo: repeated NUMANode nodes=1
NUMANode: int64 ID=1
PreStartContainerRequest: repeated string devices_ids=1
PreferredAllocationRequest: repeated ContainerPreferredAllocationRequest container_requests=1
ContainerPreferredAllocationRequest: repeated string available_deviceIDs=1, \
repeated string must_include_deviceIDs=2, int32 allocation_size=3
PreferredAllocationResponse: repeated ContainerPreferredAllocationResponse container_responses=1
ContainerPreferredAllocationResponse: repeated string deviceIDs=1
AllocateRequest: repeated ContainerAllocateRequest container_requests=1
ContainerAllocateRequest: repeated string devices_ids=1
AllocateResponse: repeated ContainerAllocateResponse container_responses=1
ContainerAllocateResponse: map<string,string> envs=1, repeated Mount mounts=2, \
repeated DeviceSpec devices=3, map<string,string> annotations=4, repeated CDIDevice cdi_devices=5
Mount: string container_path=1, string host_path=2, bool read_only=3
DeviceSpec: string container_path=1, string host_path=2, string permissions=3
CDIDevice: string name=1
"""

PLUGIN_REGISTRATION = """
InfoRequest:
PluginInfo: string type=1, string name=2, string endpoint=3, repeated string supported_versions=4
RegistrationStatus: bool plugin_registered=1, string error=2
RegistrationStatusResponse:
"""

POD_RESOURCES = """
AllocatableResourcesRequest:
ListPodResourcesRequest:
ListPodResourcesResponse: repeated PodResources pod_resources=1
AllocatableResourcesResponse: repeated ContainerDevices devices=1, repeated int64 cpu_ids=2, \
repeated ContainerMemory memory=3
GetPodResourcesRequest: string pod_name=1, string pod_namespace=2
GetPodResourcesResponse: PodResources pod_resources=1
PodResources: string name=1, string namespace=2, repeated ContainerResources containers=3, \
repeated int64 cpu_ids=4, repeated ContainerMemory memory=5
ContainerResources: string name=1, repeated ContainerDevices devices=2, repeated int64 cpu_ids=3, \
repeated ContainerMemory memory=4, repeated DynamicResource dynamic_resources=5
ContainerMemory: string memory_type=1, uint64 size=2, TopologyInfo topology=3
ContainerDevices: string resource_name=1, repeated string device_ids=2, TopologyInfo topology=3
TopologyInfo: repeated NUMANode nodes=1
NUMANode: int64 ID=1
DynamicResource: string claim_name=2, string claim_namespace=3, repeated ClaimResource claim_resources=4
ClaimResource: repeated CDIDevice cdi_devices=1, string driver_name=2, string pool_name=3, \
string device_name=4, optional string share_id=5
CDIDevice: string name=1
"""

POD_RESOURCES_ALPHA = """
ListPodResourcesRequest:
ListPodResourcesResponse: repeated PodResources pod_resources=1
PodResources: string name=1, string namespace=2, repeated ContainerResources containers=3
ContainerResources: string name=1, repeated ContainerDevices devices=2
ContainerDevices: string resource_name=1, repeated string device_ids=2
"""

PODS = """
EventType: UNSPECIFIED=0, ADDED=1, MODIFIED=2, DELETED=3, INITIAL_SYNC_COMPLETE=4
WatchPodsRequest:
WatchPodsEvent: EventType type=1, bytes pod=2
ListPodsRequest:
ListPodsResponse: repeated bytes pods=1
GetPodRequest: string podUID=1
GetPodResponse: bytes pod=1
"""

CORE = """
Pod: ObjectMeta metadata=1, PodSpec spec=2, PodStatus status=3
ObjectMeta: string name=1, string namespace=3, string uid=5, Time creationTimestamp=8, \
Time deletionTimestamp=9, map<string,string> labels=11, map<string,string> annotations=12, \
repeated OwnerReference ownerReferences=13
OwnerReference: string kind=1, string name=3, string uid=4, string apiVersion=5, bool controller=6
Time: int64 seconds=1, int32 nanos=2
PodSpec: string nodeName=10, string priorityClassName=24
PodStatus: string phase=1, string qosClass=9
"""

APIS = {
    "kubelet.pb.deviceplugin.v1beta1.api_pb2": (
        "v1beta1",
        DEVICE_PLUGIN,
        {
            "Registration.Register": "RegisterRequest → Empty",
            "DevicePlugin.GetDevicePluginOptions": "Empty → DevicePluginOptions",
            "DevicePlugin.ListAndWatch": "Empty → stream ListAndWatchResponse",
            "DevicePlugin.GetPreferredAllocation": "PreferredAllocationRequest → PreferredAllocationResponse",
            "DevicePlugin.Allocate": "AllocateRequest → AllocateResponse",
            "DevicePlugin.PreStartContainer": "PreStartContainerRequest → PreStartContainerResponse",
        },
    ),
    "kubelet.pb.pluginregistration.v1.api_pb2": (
        "pluginregistration",
        PLUGIN_REGISTRATION,
        {
            "Registration.GetInfo": "InfoRequest → PluginInfo",
            "Registration.NotifyRegistrationStatus": "RegistrationStatus → RegistrationStatusResponse",
        },
    ),
    "kubelet.pb.podresources.v1.api_pb2": (
        "v1",
        POD_RESOURCES,
        {
            "PodResourcesLister.List": "ListPodResourcesRequest → ListPodResourcesResponse",
            "PodResourcesLister.GetAllocatableResources": (
                "AllocatableResourcesRequest → AllocatableResourcesResponse"
            ),
            "PodResourcesLister.Get": "GetPodResourcesRequest → GetPodResourcesResponse",
        },
    ),
    "kubelet.pb.podresources.v1alpha1.api_pb2": (
        "v1alpha1",
        POD_RESOURCES_ALPHA,
        {"PodResourcesLister.List": "ListPodResourcesRequest → ListPodResourcesResponse"},
    ),
    "kubelet.pb.pods.v1alpha1.api_pb2": (
        "v1alpha1",
        PODS,
        {
            "Pods.WatchPods": "WatchPodsRequest → stream WatchPodsEvent",
            "Pods.ListPods": "ListPodsRequest → ListPodsResponse",
            "Pods.GetPod": "GetPodRequest → GetPodResponse",
        },
    ),
    "kubelet.pb.core.v1.pod_pb2": ("k8s.io.api.core.v1", CORE, {}),
}


def _field(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (TYPES[message.fields_by_name[name].type] for name in ("key", "value"))
        return f"map<{key},{value}> {field.name}={field.number}"
    if message is not None:
        kind = message.name
    elif field.enum_type is not None:
        kind = field.enum_type.name
    else:
        kind = TYPES[field.type]
    if field.is_repeated:
        kind = f"repeated {kind}"
    elif message is None and field.has_presence:
        kind = f"optional {kind}"
    return f"{kind} {field.name}={field.number}"


def _enum(enum: EnumDescriptor) -> str:
    return ", ".join(f"{value.name}={value.number}" for value in enum.values)


def _signature(method: MethodDescriptor) -> str:
    stream = "stream " if method.server_streaming else ""
    return f"{method.input_type.name} → {stream}{method.output_type.name}"


def _described(file: FileDescriptor) -> dict[str, str]:
    return {
        name: ", ".join(_field(field) for field in message.fields)
        for name, message in file.message_types_by_name.items()
    } | {name: _enum(enum) for name, enum in file.enum_types_by_name.items()}


def _table(text: str) -> dict[str, str]:
    rows = (line.partition(":") for line in text.strip().splitlines())
    return {name: fields.strip() for name, _, fields in rows}


@pytest.mark.parametrize("module", APIS)
def test_the_messages_are_the_kubelets(module: str) -> None:
    file: FileDescriptor = import_module(module).DESCRIPTOR
    package, messages, _ = APIS[module]
    assert file.package == package
    assert _described(file) == _table(messages)


@pytest.mark.parametrize("module", APIS)
def test_the_services_are_the_kubelets(module: str) -> None:
    file: FileDescriptor = import_module(module).DESCRIPTOR
    assert {
        f"{service.name}.{method.name}": _signature(method)
        for service in file.services_by_name.values()
        for method in service.methods
    } == APIS[module][2]
    assert not any(
        method.client_streaming for service in file.services_by_name.values() for method in service.methods
    )


def test_the_retired_number_of_a_claim_cannot_be_used_again() -> None:
    source = (ROOT / "proto" / "podresources" / "v1" / "api.proto").read_text(encoding="utf-8")
    (claim,) = [part for part in source.split("message ") if part.startswith("DynamicResource ")]
    assert "reserved 1;" in claim


def test_every_source_has_its_stubs_and_every_stub_its_source() -> None:
    sources = {
        path.relative_to(ROOT / "proto").with_suffix("").as_posix()
        for path in (ROOT / "proto").rglob("*.proto")
    }
    assert sources == set(SOURCES)
    assert not list((ROOT / "proto").rglob("__init__.py")), "proto/ must not be importable"
    assert {path.relative_to(STUBS).as_posix().split("_pb2")[0] for path in _stubs(STUBS)} == sources


def _stubs(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*_pb2*.py*") if "__pycache__" not in path.parts]


def test_the_committed_stubs_are_what_the_sources_give(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            "kubelet/pb=proto",
            f"--python_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            f"--mypy_out=quiet:{tmp_path}",
            f"--mypy_grpc_out=quiet:{tmp_path}",
            *(f"kubelet/pb/{name}.proto" for name in SOURCES),
        ],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=True,
        timeout=200,
    )
    generated = tmp_path / "kubelet" / "pb"
    for name in WITHOUT_SERVICE:
        for ending in ("py", "pyi"):
            (generated / f"{name}_pb2_grpc.{ending}").unlink()
    made = {path.relative_to(generated): path.read_text(encoding="utf-8") for path in _stubs(generated)}
    committed = {path.relative_to(STUBS): path.read_text(encoding="utf-8") for path in _stubs(STUBS)}
    assert made.keys() == committed.keys()
    for path, text in made.items():
        assert committed[path] == text, f"{path} is not what the sources give: make proto"
