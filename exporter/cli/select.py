"""Which devices and exclusive CPUs match RESOURCE=DEVICE and --pod. Pure.

Every source answers in the shape of the exporter's API documents, so selection and output are the same for an
exporter, a kubelet and Prometheus.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import click
import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from exporter.cli.common import AskError, NoMatchError
from exporter.mapping.names import has_part, is_resource, resources_named, same
from exporter.views.schema import AnomalyEntry, ClaimEntry, DeviceEntry, Envelope, PodEntry
from exporter.views.wording import listed, rfc3339, spelled

CPU: Final = "cpu"
"""The resource name of exclusive CPUs, as in a container's requests."""
STATES: Final = ("free", "held", "unhealthy")
"""The values of --state. A held device may be unhealthy, too."""


class CpusEntry(Struct, frozen=True):
    """A container with exclusive CPUs. `cpu_ids` is null if the source has only their count (Prometheus)."""

    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    count: int
    cpu_ids: tuple[int, ...] | None
    numa_nodes: tuple[int, ...] = ()


def exclusive_cpus(pods: Sequence[PodEntry]) -> tuple[CpusEntry, ...]:
    """The containers with exclusive CPUs."""
    return tuple(
        CpusEntry(
            *(pod.namespace, pod.name, container.name, pod.uid),
            *(len(container.cpu_ids), container.cpu_ids, container.numa_nodes),
        )
        for pod in pods
        for container in pod.containers
        if container.cpu_ids
    )


class MappingDocument(Envelope, frozen=True, kw_only=True):
    """The devices and exclusive CPUs of one node, and its claimed devices once more by share."""

    devices: tuple[DeviceEntry, ...]
    claims: tuple[ClaimEntry, ...] = ()
    cpus: tuple[CpusEntry, ...] = ()


class NodeDocument(MappingDocument, frozen=True, kw_only=True):
    """One node of a fleet. `labels` distinguish nodes of the same name, for example by cluster.
    `generation` is 0: Prometheus does not have it.
    """

    labels: dict[str, str] = field(default_factory=dict[str, str])
    anomalies: tuple[AnomalyEntry, ...] = ()

    @property
    def place(self) -> str:
        """`worker-3`, or `worker-3 (cluster a)`."""
        return place(self.node, self.labels)


class FleetDocument(Struct, frozen=True):
    """The answer of Prometheus as of `at`. `notes` are warnings about it."""

    prometheus: str
    at: str
    notes: tuple[str, ...]
    nodes: tuple[NodeDocument, ...]


class MappingAnswer(Struct, frozen=True):
    """The answer of a source: one node, or any number of nodes of a `fleet`.

    `origin` names the source. `notes` are warnings for standard error. `at` is the unix time of the answer;
    None: the document has its own. `incomplete`: an exporter of the fleet has no mapping yet.
    """

    nodes: tuple[NodeDocument, ...]
    origin: str
    fleet: bool = False
    notes: tuple[str, ...] = ()
    at: float | None = None
    incomplete: bool = False

    @property
    def place(self) -> str:
        """The queried nodes, for messages."""
        if len(self.nodes) == 1:
            return self.nodes[0].place
        return f"any of {len(self.nodes)} nodes" if self.nodes else "any node"

    @property
    def document(self) -> Struct:
        """The answer as a JSON document."""
        if self.fleet:
            return FleetDocument(self.origin, rfc3339(self.at or 0.0), self.notes, self.nodes)
        (node,) = self.nodes
        return MappingDocument(**{name: getattr(node, name) for name in MappingDocument.__struct_fields__})


def place(node: str, labels: Mapping[str, str]) -> str:
    """`worker-3`, or `worker-3 (cluster a)`."""
    if not labels:
        return node
    return f"{node} ({', '.join(f'{name} {value}' for name, value in sorted(labels.items()))})"


class NamespacedPod(Struct, frozen=True):
    """A pod by namespace and name; "" is any pod of the namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return spelled(f"{self.namespace}/{self.name}" if self.name else f"a pod of {self.namespace}")

    def holds(self, namespace: str, pod: str) -> bool:
        """Whether a holder with this namespace and pod name belongs to the pod."""
        return same(namespace, self.namespace) and (not self.name or same(pod, self.name))


class HolderQuery(Struct, frozen=True):
    """The filter of a command line; "" and None match everything.

    `resource` is a whole resource name or the part after its slash. `device` is a whole device id, a parent's
    id, or a part of an id. `states` are some of STATES.
    """

    resource: str = ""
    device: str = ""
    pod: NamespacedPod | None = None
    states: frozenset[str] = frozenset()

    @property
    def filters(self) -> bool:
        """Whether anything is filtered."""
        return bool(self.resource or self.device or self.pod or self.states)

    def no_match(self, node: str, held: str = "is held", when: str = "") -> str:
        """`no device like 'x' of y on node is held by ns/pod`, with the time `when` if it is given."""
        parts = ["no", *([" or ".join(sorted(self.states))] if self.states else []), "device"]
        if self.device:
            parts.append(f"like {spelled(self.device)!r}")
        if self.resource:
            parts.append(f"of {spelled(self.resource)}")
        parts.append(f"on {spelled(node)}")
        if self.pod is not None:
            parts.append(f"{held} by {self.pod}")
        elif when:
            parts.append(held)
        return " ".join((*parts, when)).rstrip()


def parse_query(
    what: str, pod: str | None, namespace: str | None = None, states: Iterable[str] = ()
) -> HolderQuery:
    """The query of RESOURCE, RESOURCE=DEVICE or =DEVICE, of --pod, --namespace and --state. A device id may
    contain `=`.

    Raises BadParameter.
    """
    resource, equals, device = what.partition("=")
    if equals and not device:
        message = f"found {spelled(what)!r}, expected RESOURCE or RESOURCE=DEVICE"
        raise click.BadParameter(message, param_hint="RESOURCE")
    return HolderQuery(resource, device, _parse_pod(pod, namespace), frozenset(states))


def _parse_pod(pod: str | None, namespace: str | None) -> NamespacedPod | None:
    if namespace is not None and (not namespace or "/" in namespace):
        raise click.BadParameter(f"found {spelled(namespace)!r}, expected a name", param_hint="--namespace")
    if pod is None:
        return None if namespace is None else NamespacedPod(namespace, "")
    words = pod.split("/") if namespace is None else [namespace, pod]
    if len(words) != 2 or not all(words) or "/" in words[1]:
        expected = "NAMESPACE/NAME" if namespace is None else "NAME beside --namespace"
        raise click.BadParameter(f"found {spelled(pod)!r}, expected {expected}", param_hint="--pod")
    return NamespacedPod(*words)


def select(answer: MappingAnswer, query: HolderQuery) -> MappingAnswer:
    """The entries that `query` matches. Nodes without a match are left out, unless `query` filters nothing.

    Exclusive CPUs match unless a device is given. Raises NoMatchError, BadParameter for an ambiguous
    resource, and AskError where the source does not know the states of the devices.
    """
    if not query.filters:
        return answer
    if query.resource and not _meant(answer, query.resource):
        raise NoMatchError(_unknown_resource(answer, query.resource))
    named = narrow(answer, query)
    found = in_states(named, query.states).nodes
    nodes = tuple(node for node in found if node.devices or node.cpus)
    if not nodes:
        unknown = unknown_states(named, query.states)
        raise AskError(unknown) if unknown else NoMatchError(query.no_match(answer.place))
    return replace(answer, nodes=nodes)


def in_states(answer: MappingAnswer, states: Collection[str]) -> MappingAnswer:
    """The devices in any of `states`; all for no states. Exclusive CPUs are held."""
    if not states:
        return answer
    return replace(
        answer,
        nodes=tuple(
            _with_devices(
                node,
                [device for device in node.devices if not _states(device).isdisjoint(states)],
                node.cpus if "held" in states else (),
            )
            for node in answer.nodes
        ),
    )


def _with_devices(
    node: NodeDocument, devices: Sequence[DeviceEntry], cpus: tuple[CpusEntry, ...]
) -> NodeDocument:
    """`node` with these devices and exclusive CPUs alone."""
    shown = {name for device in devices for name in _claimed_names(device)}
    claims = tuple(claim for claim in node.claims if (claim.driver, claim.pool, claim.device) in shown)
    return msgspec.structs.replace(node, devices=tuple(devices), claims=claims, cpus=cpus)


def _claimed_names(device: DeviceEntry) -> Iterator[tuple[str, str, str]]:
    if device.claimed is not None:
        yield device.claimed.driver, device.claimed.pool, device.claimed.device


def is_free(device: DeviceEntry) -> bool:
    """Whether a pod can get the device. An older exporter says so by the health of an unheld device."""
    return bool(device.healthy and not device.holders) if device.free is None else device.free


def is_alternative(device: DeviceEntry) -> bool:
    """Whether another partition of the same physical device is counted in place of this one."""
    return device.claimed is not None and device.claimed.alternative


def _states(device: DeviceEntry) -> frozenset[str]:
    held = ["held"] if device.holders else ["free"] if is_free(device) else []
    return frozenset([*held, *(["unhealthy"] if device.healthy is False else [])])


def unknown_states(answer: MappingAnswer, states: Collection[str]) -> str:
    """A warning where `states` ask for more than the source knows of its devices; "" elsewhere."""
    unknown = [
        (state, node, device)
        for state in sorted({"free", "unhealthy"}.intersection(states))
        for node in answer.nodes
        for device in node.devices
        if _is_unknown(device, state)
    ]
    if not unknown:
        return ""
    places = listed([spelled(name) for name in dict.fromkeys(node.place for _, node, _ in unknown)])
    words = " or ".join(dict.fromkeys(state for state, _, _ in unknown))
    reasons = dict.fromkeys(_why_unknown(answer, state, device) for state, _, device in unknown)
    return f"it is unknown which devices of {places} are {words}: {', and '.join(reasons)}"


def knows_free(device: DeviceEntry) -> bool:
    """Whether the free devices of the device's resource are known."""
    return device.free is not None or (device.healthy is not None and device.claimed is None)


def _is_unknown(device: DeviceEntry, state: str) -> bool:
    """Whether it is unknown which devices of the resource are free, or whether this one is unhealthy. A free
    device is not unhealthy.
    """
    if state == "free":
        return not knows_free(device)
    return device.healthy is None and (bool(device.holders) or device.free is None)


def _why_unknown(answer: MappingAnswer, state: str, device: DeviceEntry) -> str:
    if answer.fleet:
        return "no series says so"
    if device.claimed is None:
        return "the kubelet does not report allocatable devices"
    if state == "free":
        return "no ResourceSlices of the driver are known"
    return "no source reports the health of claimed devices"


def narrow(answer: MappingAnswer, query: HolderQuery) -> MappingAnswer:
    """The same, but with every node and state, and without an error where nothing matches: for --watch.

    Raises BadParameter for an ambiguous resource.
    """
    if not query.filters:
        return answer
    resources = _meant(answer, query.resource) if query.resource else None
    matches = device_matcher(_device_names(answer, resources), query.device) if query.device else None
    return replace(
        answer, nodes=tuple(_narrowed(node, query.pod, resources, matches) for node in answer.nodes)
    )


DeviceNames = tuple[str, str | None, str]
"""A name of a device, its parent's id, and the text that a part is searched in."""
DeviceMatcher = Callable[[str, str | None, str], bool]
"""Whether a device matches, by its DeviceNames."""


def _narrowed(
    node: NodeDocument,
    pod: NamespacedPod | None,
    resources: frozenset[str] | None,
    matches: DeviceMatcher | None,
) -> NodeDocument:
    devices: list[DeviceEntry] = list(node.devices)
    cpus = node.cpus if (resources is None or CPU in resources) and matches is None else ()
    if resources is not None:
        devices = [d for d in devices if not resources.isdisjoint(resource_names(d))]
    if matches is not None:
        devices = [d for d in devices if any(matches(*names) for names in _names(d))]
    if pod is not None:
        devices = [d for d in devices if any(pod.holds(h.namespace, h.pod) for h in d.holders)]
        cpus = tuple(c for c in cpus if pod.holds(c.namespace, c.pod))
    return _with_devices(node, devices, cpus)


def resource_names(device: DeviceEntry) -> Iterator[str]:
    """The names that RESOURCE finds a device by: its resource, its driver, and what its holders asked by."""
    yield device.resource
    if device.claimed is not None:
        yield device.claimed.driver
    for holder in device.holders:
        if holder.requested_as:
            yield holder.requested_as


def _names(device: DeviceEntry) -> Iterator["DeviceNames"]:
    """The names that =DEVICE finds a device by: its id and parent, a claimed device's name and CDI names, and
    its UUID and PCI address.
    """
    yield device.device, device.parent, device.device
    further: list[str] = []
    if device.claimed is not None:
        further += [device.claimed.device, *device.claimed.cdi_devices]
    if device.identity is not None:
        further += [device.identity.uuid, device.identity.pci_address]
    yield from ((name, None, name) for name in further if name)


def device_matcher(known: Iterable[DeviceNames], given: str) -> DeviceMatcher:
    """Matches whole ids and parents if `known` has any, or else parts of ids."""

    def whole(name: str, parent: str | None, full: str) -> bool:
        return same(name, given) or same(full, given) or bool(parent and same(parent, given))

    def part(name: str, parent: str | None, full: str) -> bool:  # noqa: ARG001 -- DeviceMatcher's
        return has_part(full, given)

    return whole if any(whole(*names) for names in known) else part


def _device_names(answer: MappingAnswer, resources: frozenset[str] | None) -> Iterator[DeviceNames]:
    for node in answer.nodes:
        for device in node.devices:
            if resources is None or not resources.isdisjoint(resource_names(device)):
                yield from _names(device)


def _meant(answer: MappingAnswer, given: str) -> frozenset[str]:
    """The names that RESOURCE means: one resource, and every driver, extended resource, and DeviceClass of
    this name: a class and an extended resource may stand for the same devices.

    Raises BadParameter if it may be several resources.
    """
    resources = {device.resource for node in answer.nodes for device in node.devices}
    resources |= {CPU} if any(node.cpus for node in answer.nodes) else set()
    one = resource_among(resources, given)
    others = [name for name in _resources(answer) - resources if is_resource(name, given)]
    return frozenset([*([] if one is None else [one]), *others])


def resource_among(known: Iterable[str], given: str) -> str | None:
    """The whole resource name for a whole name or the part after a slash; None if there is none.

    Raises BadParameter if several names match.
    """
    names = resources_named(known, given)
    if len(names) > 1:
        message = f"{spelled(given)!r} may be {listed([spelled(name) for name in names])}: say which"
        raise click.BadParameter(message, param_hint="RESOURCE")
    return names[0] if names else None


def there_are(known: Iterable[str]) -> str:
    """The known names, for a message about an unknown one."""
    names = sorted(known)
    return f"there are {listed([spelled(n) for n in names], 10)}" if names else "there are none"


def _resources(answer: MappingAnswer) -> frozenset[str]:
    """What RESOURCE may name: resources, DRA drivers, what pods asked by, and exclusive CPUs."""
    return frozenset(
        [
            *(name for node in answer.nodes for device in node.devices for name in resource_names(device)),
            *([CPU] if any(node.cpus for node in answer.nodes) else []),
        ]
    )


def _unknown_resource(answer: MappingAnswer, given: str) -> str:
    ids = [device.device for node in answer.nodes for device in node.devices]
    if any(same(device, given) for device in ids):
        return f"there is no resource {spelled(given)!r}, but a device: ask for ={spelled(given)}"
    return f"no resource {spelled(given)!r} on {spelled(answer.place)}: {there_are(_resources(answer))}"
