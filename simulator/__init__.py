"""A simulated kubelet: what the demo, the tests and plugin authors run against.

It behaves as a real one does towards device plugins (Registration, ListAndWatch, Allocate, checkpoint,
restart), towards monitors (PodResources, Pods API) and towards people (pods that are refused), oddities
included; and it can be made slow, hung, rate-limited, garbage-answering or gone. Nothing needs a node.
"""

from simulator.faults import Faults, RegistrationFaults
from simulator.kubelet import SimulatedKubelet
from simulator.model import (
    AdmissionError,
    ClaimDevice,
    ClaimSpec,
    ContainerError,
    ContainerSpec,
    Holding,
    Owner,
    Phase,
    Pod,
    PodSpec,
)
from simulator.node import Replay
from simulator.process import RootInUseError

__all__ = [
    "AdmissionError",
    "ClaimDevice",
    "ClaimSpec",
    "ContainerError",
    "ContainerSpec",
    "Faults",
    "Holding",
    "Owner",
    "Phase",
    "Pod",
    "PodSpec",
    "RegistrationFaults",
    "Replay",
    "RootInUseError",
    "SimulatedKubelet",
]
