"""exporter.mapping.claimed_devices: devices of claims and slices in the snapshot, however it is built."""

import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.claimed_devices import NO_CLAIMS, ClaimFacts, PodsWithClaims, claim_facts
from exporter.mapping.device_identity import identity_of
from exporter.mapping.dra import (
    NO_DRA,
    AllocatedDevice,
    CdiDevice,
    Claim,
    ClaimName,
    Consumption,
    ContainerClaim,
    CounterName,
    DraView,
    ExtendedClaim,
    ExtendedRequest,
    PodClaim,
    PodDevices,
    PublishedDevice,
    PublishedName,
    Taint,
)
from exporter.mapping.listing import ListReader
from exporter.mapping.model import ClaimHolding, DeviceKey, Holder, ResourceCounts, Snapshot
from exporter.mapping.snapshot import SnapshotBuilder
from harness.answers import offered
from kubelet.pb.podresources.v1 import api_pb2

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)
NODE, DRIVER = "node-1", "gpu.example.com"
P, Q = Holder("n", "p", "c"), Holder("n", "q", "c")


def _name(device: str, pool: str = NODE) -> PublishedName:
    return PublishedName(DRIVER, pool, device)


def _claiming(pod: str, claim: str, *devices: str, share: str = "", cdi: str = "") -> api_pb2.PodResources:
    found = api_pb2.PodResources(namespace="n", name=pod)
    resource = found.containers.add(name="c").dynamic_resources.add(claim_name=claim, claim_namespace="n")
    for device in devices:
        listed = resource.claim_resources.add(
            driver_name=DRIVER, pool_name=NODE, device_name=device, share_id=share
        )
        for name in cdi.split(",") if cdi else ():
            listed.cdi_devices.add(name=name)
    return found


def _claim(name: str, *devices: str, admin: bool = False, request: str = "r", share: str = "") -> Claim:
    results = [AllocatedDevice(_name(device), share, request, "gpu", admin) for device in devices]
    return Claim(ClaimName("n", name), f"uid-{name}", tuple(results))


def _view(
    *claims: Claim,
    devices: Iterable[PublishedDevice] = (),
    counters: Mapping[CounterName, float] | None = None,
    cdi: Mapping[str, CdiDevice] | None = None,
) -> DraView:
    published = {device.name: device for device in devices}
    return DraView(
        published=published,
        counters=counters or {},
        drivers=frozenset({name.driver for name in published}),
        claims={claim.name: claim for claim in claims},
        cdi=cdi or {},
    )


def _built(
    view: DraView,
    *pods: api_pb2.PodResources,
    objects: PodsWithClaims = MappingProxyType({}),
) -> Snapshot:
    listed = ListReader().read(api_pb2.ListPodResourcesResponse(pod_resources=pods).SerializeToString())
    facts = claim_facts(NODE, view, objects, NO_CLAIMS)
    return SnapshotBuilder().build(listed, offered(), claims=facts)


def test_name_is_of_driver_pool_and_device_and_of_the_slice_attribute() -> None:
    elsewhere = api_pb2.PodResources(namespace="n", name="q")
    resource = elsewhere.containers.add(name="c").dynamic_resources.add(claim_name="x", claim_namespace="n")
    resource.claim_resources.add(driver_name=DRIVER, pool_name="rack", device_name="nic-0")
    published = PublishedDevice(_name("fpga-0"), resource="example.com/fpga")
    found = _built(_view(devices=[published]), _claiming("p", "mine", "gpu-0"), elsewhere)
    assert [device.key for device in found.devices] == [
        DeviceKey("example.com/fpga", "fpga-0"),
        DeviceKey(DRIVER, "gpu-0"),
        DeviceKey(DRIVER, "rack/nic-0"),
    ]


def test_free_devices_are_those_of_slices_and_unknown_without() -> None:
    devices = [PublishedDevice(_name("gpu-0"), numa_nodes=(1,)), PublishedDevice(_name("gpu-1"))]
    held = _claiming("p", "mine", "gpu-0")
    found = _built(_view(devices=devices), held)
    assert found.knows_all(DRIVER)
    assert found.resources() == {DRIVER: ResourceCounts(2, 2, 1, 0, 1)}
    assert [device.holders for device in found.devices] == [(P,), ()]
    assert found.containers[0].numa_nodes == found.devices[0].numa_nodes == (1,)
    alone = _built(NO_DRA, held)
    assert not alone.knows_all(DRIVER)
    assert [device.key.device for device in alone.devices] == ["gpu-0"]


def test_administrator_is_no_holder_once_the_claim_is_known() -> None:
    pods = _claiming("p", "mine", "gpu-0"), _claiming("q", "watch", "gpu-0")
    (unknown,) = _built(NO_DRA, *pods).devices
    assert unknown.holders == (P, Q)
    view = _view(_claim("mine", "gpu-0"), _claim("watch", "gpu-0", admin=True))
    found = _built(view, *pods)
    assert found.devices[0].holders == (P,)
    assert found.devices[0].claimed is not None
    assert [one.admin for one in found.devices[0].claimed.through] == [False, True]
    assert [dict(one.devices) for one in found.containers] == [{"gpu": 1}, {}]


def test_claim_of_another_pod_of_that_name_says_nothing() -> None:
    """A claim that was deleted and made again under its name has other devices."""
    (device,) = _built(_view(_claim("mine", "gpu-7", admin=True)), _claiming("p", "mine", "gpu-0")).devices
    assert device.holders == (P,)
    assert device.requested_as(P) == ""


def test_requested_as_is_the_extended_resource_else_the_device_class() -> None:
    served = ExtendedClaim("ext", (ExtendedRequest("c", "example.com/gpu", "r"),))
    pods = _claiming("p", "ext", "gpu-0", "gpu-1"), _claiming("q", "own", "gpu-2")
    extended = {("n", "p"): (PodDevices(extended=served),)}
    found = _built(_view(_claim("ext", "gpu-0", "gpu-1"), _claim("own", "gpu-2")), *pods, objects=extended)
    asked = [device.requested_as(holder) for device in found.devices for holder in device.holders]
    assert asked == ["example.com/gpu", "example.com/gpu", "gpu"]
    assert [dict(one.devices) for one in found.containers] == [{"example.com/gpu": 2}, {"gpu": 1}]
    # Without the right to read claims the pod's status is enough for one resource, and not for two.
    (one, _, other) = _built(NO_DRA, *pods, objects=extended).devices
    assert (one.requested_as(P), other.requested_as(Q)) == ("example.com/gpu", "")
    both = ExtendedClaim("ext", (*served.requests, ExtendedRequest("c", "example.com/nic", "s")))
    (one, *_) = _built(NO_DRA, *pods, objects={("n", "p"): (PodDevices(extended=both),)}).devices
    assert one.requested_as(P) == ""


def test_taint_takes_a_device_out_of_the_free_ones() -> None:
    taints = (Taint("xid", "79", "NoExecute"),)
    devices = [
        PublishedDevice(_name("gpu-0"), taints=taints),
        PublishedDevice(_name("gpu-1"), taints=(Taint("note", "", "None"),)),
    ]
    assert _built(_view(devices=devices)).resources() == {DRIVER: ResourceCounts(2, 1, 0, 1, 1)}


def _partitions(gpu: str) -> tuple[list[PublishedDevice], dict[CounterName, float]]:
    """A GPU as a whole, or as two halves."""
    slices = CounterName(DRIVER, NODE, gpu, "slices")
    return [
        PublishedDevice(
            _name(name),
            parent="" if name == gpu else gpu,
            consumes=(Consumption(gpu, "slices", amount),),
        )
        for name, amount in ((gpu, 2.0), (f"{gpu}-a", 1.0), (f"{gpu}-b", 1.0))
    ], {slices: 2.0}


def test_partitions_are_never_summed() -> None:
    devices, counters = _partitions("gpu-0")
    view = _view(devices=devices, counters=counters)
    free = _built(view)
    assert free.resources() == {DRIVER: ResourceCounts(1, 1, 0, 0, 1, alternatives=2)}
    assert [device.parent for device in free.devices] == ["", "gpu-0", "gpu-0"]
    half = _built(view, _claiming("p", "mine", "gpu-0-a"))
    assert half.resources() == {DRIVER: ResourceCounts(2, 2, 1, 0, 1, alternatives=1)}
    whole = _built(view, _claiming("p", "mine", "gpu-0"))
    assert whole.resources() == {DRIVER: ResourceCounts(1, 1, 1, 0, 0, alternatives=2)}


def test_all_cdi_names_of_one_device_say_what_it_is() -> None:
    cdi = {
        "example.com/gpu=common": CdiDevice(pci_addresses=("0000:01:00.0",)),
        "example.com/gpu=x": CdiDevice(uuids=("GPU-1",)),
        "example.com/claim=1-x": CdiDevice(pci_addresses=("0000:3b:00.0",)),
    }
    one = _claiming("p", "mine", "x", cdi="example.com/gpu=common,example.com/gpu=x,example.com/claim=1-x")
    other = _claiming("q", "yours", "y", cdi="example.com/gpu=common")
    x, y = _built(_view(cdi=cdi), one, other).devices
    assert identity_of(x, None) == ("GPU-1", "0000:3b:00.0", "", DRIVER)
    assert identity_of(y, None) == ("", "", "", DRIVER)


def test_cdi_name_of_several_devices_says_nothing_of_one() -> None:
    cdi = {"example.com/gpu=x": CdiDevice(uuids=("GPU-1",))}
    for devices, known in ((("gpu-0",), True), (("gpu-0", "gpu-1"), False)):
        found = _built(_view(cdi=cdi), _claiming("p", "mine", *devices, cdi="example.com/gpu=x"))
        assert [
            device.claimed is not None and device.claimed.cdi is not None for device in found.devices
        ] == [known for _ in devices]


def test_device_keeps_its_resource_when_its_slice_is_gone() -> None:
    published = PublishedDevice(_name("fpga-0"), resource="example.com/fpga")
    first = claim_facts(NODE, _view(devices=[published]), {}, NO_CLAIMS)
    later = claim_facts(NODE, _view(), {}, first)
    assert later.key(published.name) == DeviceKey("example.com/fpga", "fpga-0")
    assert claim_facts(NODE, later.view, {}, later) is later


def test_attribute_counts_while_the_slice_has_it() -> None:
    published = PublishedDevice(_name("fpga-0"), resource="example.com/fpga")
    first = claim_facts(NODE, _view(devices=[published]), {}, NO_CLAIMS)
    later = claim_facts(NODE, _view(devices=[replace(published, resource="")]), {}, first)
    assert later.key(published.name) == DeviceKey(DRIVER, "fpga-0")
    assert list(later.published) == [DeviceKey(DRIVER, "fpga-0")]


def test_devices_of_two_drivers_never_have_one_name() -> None:
    drivers = "a.example.com", "b.example.com"
    devices = [
        PublishedDevice(PublishedName(driver, NODE, device), resource="example.com/gpu")
        for driver in drivers
        for device in ("gpu-0", f"of-{driver}")
    ]
    found = _built(_view(devices=devices))
    assert [device.key for device in found.devices] == [
        *[DeviceKey(driver, "gpu-0") for driver in drivers],
        *[DeviceKey("example.com/gpu", f"of-{driver}") for driver in drivers],
    ]


def test_device_that_only_an_administrator_has_and_no_slice_names_is_not_free() -> None:
    watched, pod = _claim("watch", "gpu-0", "gpu-1", admin=True), _claiming("q", "watch", "gpu-0", "gpu-1")
    devices = [PublishedDevice(_name(name)) for name in ("gpu-0", "gpu-1")]
    whole, gone = _view(watched, devices=devices), _view(watched, devices=devices[:1])
    assert _built(whole, pod).resources() == {DRIVER: ResourceCounts(2, 2, 0, 0, 2)}
    assert _built(gone, pod).resources() == {DRIVER: ResourceCounts(2, 1, 0, 1, 1)}
    # Of a driver without slices nothing is known: its devices are not called unhealthy.
    assert [device.allocatable for device in _built(_view(watched), pod).devices] == [True, True]


_DEVICES = [*_partitions("gpu-0")[0], *[PublishedDevice(_name(f"nic-{n}")) for n in range(3)]]
_NAMES = [device.name.device for device in _DEVICES]
_PODS = st.builds(
    _claiming,
    st.sampled_from("pqrs"),
    st.sampled_from(["one", "two", "three"]),
    st.sampled_from(_NAMES),
    st.sampled_from(_NAMES),
    share=st.sampled_from(["", "s1"]),
    cdi=st.sampled_from(["", "cdi-1", "cdi-2"]),
)


_OTHERS = [api_pb2.PodResources(namespace="n", name=f"other-{number}") for number in range(9)]


def _changed(device: PublishedDevice, kind: int) -> PublishedDevice:
    return [
        device,
        replace(device, taints=(Taint("k", "v", "NoSchedule"),)),
        replace(device, numa_nodes=(1,)),
        replace(device, resource="example.com/other"),
    ][kind]


@st.composite
def _views(draw: st.DrawFn) -> DraView:
    kept = draw(st.lists(st.sampled_from(_DEVICES), unique=True))
    kinds = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=len(kept), max_size=len(kept)))
    devices = [_changed(device, kind) for device, kind in zip(kept, kinds, strict=True)]
    claims = [
        _claim(name, *_NAMES, admin=draw(st.booleans()))
        for name in draw(st.lists(st.sampled_from(["one", "two"]), unique=True))
    ]
    cdi = {name: CdiDevice(uuids=(name,)) for name in draw(st.lists(st.sampled_from(["cdi-1"])))}
    return _view(*claims, devices=devices, counters=_partitions("gpu-0")[1], cdi=cdi)


@SETTINGS
@given(
    st.lists(st.lists(_PODS, max_size=4, unique_by=lambda pod: pod.name), min_size=3, max_size=5),
    st.lists(_views(), min_size=2, max_size=3),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
def test_incremental_snapshot_equals_a_whole_build(
    answers: Sequence[list[api_pb2.PodResources]], views: Sequence[DraView], chosen: Sequence[int]
) -> None:
    reader, builder, facts = ListReader(), SnapshotBuilder(), ClaimFacts(NODE)
    pods: dict[str, api_pb2.PodResources] = {}
    for step, number in enumerate(chosen):
        # One pod changes at a time, so that most steps are updates and no whole builds.
        for pod in answers[step % len(answers)][:1]:
            pods[pod.name] = pod
        if number == 0:
            pods = {pod.name: pod for pod in answers[step % len(answers)]}
        served = ExtendedClaim("one", (ExtendedRequest("c", "e/r", "r"),))
        used = PodDevices((PodClaim("x", "two"),), uses=(ContainerClaim("c", "x", "other"),))
        objects = [{}, {("n", "p"): (PodDevices(extended=served),)}, {("n", "p"): (used,)}][
            max(0, number - 7)
        ]
        facts = claim_facts(NODE, views[number % len(views)], objects, facts)
        order = [*pods.values(), *_OTHERS]
        random.Random(step).shuffle(order)
        data = api_pb2.ListPodResourcesResponse(pod_resources=order).SerializeToString()
        found = builder.build(reader.read(data), offered(), claims=facts)
        whole = SnapshotBuilder().build(ListReader().read(data), offered(), claims=facts)
        assert found == whole
        assert found.resources() == whole.resources()


def test_slice_event_keeps_all_other_devices() -> None:
    pods = [_claiming("p", "mine", "gpu-0"), *[_claiming(f"q{n}", f"c{n}", f"gpu-{n}") for n in range(1, 9)]]
    devices = [PublishedDevice(_name(f"gpu-{n}")) for n in range(20)]
    data = api_pb2.ListPodResourcesResponse(pod_resources=pods).SerializeToString()
    reader, builder = ListReader(), SnapshotBuilder()
    facts = claim_facts(NODE, _view(devices=devices), {}, NO_CLAIMS)
    first = builder.build(reader.read(data), offered(), claims=facts)
    tainted = replace(devices[3], taints=(Taint("k", "v", "NoSchedule"),))
    facts = claim_facts(
        NODE, _view(devices=[tainted if one is devices[3] else one for one in devices]), {}, facts
    )
    second = builder.build(reader.read(data), offered(), claims=facts)
    changed = second.changed_since(first)
    assert changed is not None
    assert [now.key.device for _, now in changed] == ["gpu-3"]


def test_claim_holding_is_sorted_with_and_without_facts() -> None:
    view = _view(_claim("one", "gpu-0"))
    (device,) = _built(view, _claiming("q", "two", "gpu-0"), _claiming("p", "one", "gpu-0")).devices
    assert device.claimed is not None
    assert device.claimed.through == (
        ClaimHolding(P, "n", "one", "", "r", "gpu", admin=False),
        ClaimHolding(Q, "n", "two"),
    )


def _two_containers(claim: str, *devices: str) -> api_pb2.PodResources:
    """List names all devices of a claim for each container that uses any of its requests."""
    pod = _claiming("p", claim, *devices)
    other = pod.containers.add()
    other.CopyFrom(pod.containers[0])
    other.name = "d"
    return pod


def test_container_holds_the_devices_of_its_own_requests() -> None:
    requests = {"c": "first", "d": "second", "init": "third"}
    results = tuple(
        AllocatedDevice(_name(f"gpu-{number}"), "", request, "gpu", admin=False)
        for number, request in enumerate(requests.values())
    )
    claim = Claim(ClaimName("n", "ext"), "uid", results)
    served = ExtendedClaim(
        "ext", tuple(ExtendedRequest(container, "e/gpu", request) for container, request in requests.items())
    )
    listed, objects = _two_containers("ext", "gpu-0", "gpu-1"), {("n", "p"): (PodDevices(extended=served),)}
    published = [PublishedDevice(_name(f"gpu-{number}")) for number in range(4)]
    found = _built(_view(claim, devices=published), listed, objects=objects)
    assert [[one.container for one in device.holders] for device in found.devices] == [["c"], ["d"], [], []]
    assert [dict(one.devices) for one in found.containers] == [{"e/gpu": 1}, {"e/gpu": 1}]
    # The device of an init container is in no List, and is not free.
    assert [found.is_free(device) for device in found.devices] == [False, False, False, True]
    assert found.devices[2].reserved == (("n", "ext"),)
    counts = found.resources()[DRIVER]
    assert (counts.free, counts.reserved, counts.unavailable, counts.held_unhealthy) == (1, 1, 1, 0)
    # Without the claim, List is all that is known.
    unknown = _built(NO_DRA, listed, objects=objects)
    assert [len(device.holders) for device in unknown.devices] == [2, 2]


def test_cdi_names_that_list_repeats_are_those_of_the_device_alone() -> None:
    """kubelet: each device of a claim is listed with the CDI names of those before it."""
    pod = _claiming("p", "mine", "gpu-0", "gpu-1", "gpu-2")
    listed = pod.containers[0].dynamic_resources[0].claim_resources
    for number, one in enumerate(listed):
        one.cdi_devices.extend([api_pb2.CDIDevice(name=f"e/gpu={n}") for n in range(number + 1)])
    found = _built(NO_DRA, pod)
    assert [device.claimed and device.claimed.cdi_devices for device in found.devices] == [
        ("e/gpu=0",),
        ("e/gpu=1",),
        ("e/gpu=2",),
    ]
