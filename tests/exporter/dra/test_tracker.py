"""exporter.dra.tracker: one view of all sources."""

from collections.abc import Callable, Mapping

from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.dra.claims import ClaimReader
from exporter.dra.slices import SliceWatch
from exporter.dra.tracker import DraTracker
from exporter.mapping.dra import CdiDevice, ClaimName, SourceStatus
from harness.waiting import background, until_holds
from simulator import SimulatedKubelet
from simulator.apiserver import ApiServer
from simulator.dra_objects import CLAIMS, SLICES, claim, device, request, resource_slice


class Requests:
    """Counts what the tracker requests of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def trigger(self, cause: object) -> None:
        raise AssertionError(cause)

    def reconsider(self) -> None:
        self.count += 1


class Cdi:
    """A CdiSource without files."""

    def __init__(self) -> None:
        self.devices: Mapping[str, CdiDevice] = {"vendor.com/gpu=0": CdiDevice(("GPU-1",))}
        self.status = SourceStatus("cdi", up=True)
        self.changed: Callable[[], None] = lambda: None

    def bind(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    async def run(self) -> None:
        """Nothing changes by itself."""


async def test_slices_and_claims_are_one_view(kubelet: SimulatedKubelet, api: ApiServer) -> None:
    access, name = ApiServerAccess(api.url), ClaimName("default", "c")
    tracker = DraTracker(SliceWatch(access, kubelet.node_name), ClaimReader(access))
    requests = Requests()
    tracker.bind(requests)
    assert "not listed yet" in tracker.words
    async with background(tracker.run()):
        await until_holds(lambda: all(one.up for one in tracker.view.sources))
        assert tracker.words == "ResourceSlices watched at the API server"
        view = tracker.view
        assert tracker.view is view
        kubelet.objects.create(
            SLICES, resource_slice("gpu.example.com", kubelet.node_name, [device("gpu-0")])
        )
        await until_holds(lambda: tracker.view.published)
        count = requests.count
        kubelet.objects.create(CLAIMS, claim("c", request("r", "example")))
        tracker.want([name])
        await tracker.known([name], 60)
        assert tracker.view.claims.keys() == {name}
        assert requests.count > count
        assert [one.name for one in tracker.view.sources] == ["slices", "claims"]
        # What did not change is the same object.
        assert tracker.view.published is tracker.view.published


async def test_cdi_alone() -> None:
    cdi, requests = Cdi(), Requests()
    tracker = DraTracker(cdi=cdi)
    tracker.bind(requests)
    await tracker.known([ClaimName("default", "c")], 60)
    assert tracker.words == "CDI specifications followed"
    before = tracker.view
    assert before.cdi == cdi.devices
    cdi.status = SourceStatus("cdi", up=False, problem="no CDI directory")
    cdi.changed()
    assert requests.count == 1
    assert tracker.view is not before
    assert tracker.view.sources == (cdi.status,)
    assert tracker.words == "no CDI directory"
