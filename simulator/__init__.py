"""A simulated kubelet: what the demo, the tests and plugin authors run against.

It behaves as a real one does towards device plugins (Registration, ListAndWatch, Allocate, checkpoint,
restart), towards monitors (PodResources, Pods API) and towards people (pods that are refused), oddities
included; and it can be made slow, hung, rate-limited, garbage-answering or gone. Nothing needs a node.

model        what a person asks for: pods, containers, claims; and what comes of it
names, topology, allocation, devices, pinning, claims, checkpoint, ratelimit, faults, answers, oddities
             what decides and what is kept, each for itself
node         what outlives the kubelet's process: pods, pinned CPUs, settings
rpc, sockets, tasks
             gRPC in Go's words, sockets that come and go as a kubelet's do, tasks that end together
endpoint, manager, registration, registry, admission
             the device manager: plugins' connections and streams, who registers, who gets what
cgroups      directories of pods, as a monitor sees their cgroups
podresources, pods
             what monitors ask
life, process, workload, kubelet
             one life of the process, one after another, the node's pods, all of it together
dra_objects  slices, claims and device classes as the API has them, and where they are kept
apiserver    an API server with the pods of this node and those objects
pod_object   a pod as the API server shows it
dra_allocation, dra_scheduler
             which devices claims are given, and what makes and releases claims
dra_claims, dra_manager, pod_status
             the kubelet's part: drivers, prepared claims, and devices' health in pods' status
dra_driver, cdi
             a DRA driver that a test controls, and the CDI specifications that it writes
scripted     a device plugin that a test controls
control, control_server
             the control socket, from both ends
cli, remote, fault_words, main
             the command `devicelens kubelet`
demo, demo_npu, scenario
             the command `devicelens demo`
"""

from simulator.faults import Faults, RegistrationFaults
from simulator.kubelet import SimulatedKubelet
from simulator.model import (
    AdmissionError,
    ClaimDevice,
    ClaimRef,
    ClaimSpec,
    ContainerError,
    ContainerSpec,
    Holding,
    Owner,
    Phase,
    Pod,
    PodClaim,
    PodSpec,
)
from simulator.node import Replay
from simulator.process import RootInUseError

__all__ = [
    "AdmissionError",
    "ClaimDevice",
    "ClaimRef",
    "ClaimSpec",
    "ContainerError",
    "ContainerSpec",
    "Faults",
    "Holding",
    "Owner",
    "Phase",
    "Pod",
    "PodClaim",
    "PodSpec",
    "RegistrationFaults",
    "Replay",
    "RootInUseError",
    "SimulatedKubelet",
]
