from hypothesis import given
from hypothesis import strategies as st

from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from plugin.devices.device import Device
from plugin.devices.inventory import ListEntry, TrackedDevice
from plugin.serving.endpoint import DeviceListPublisher


def entry(name: str, reason: str = "", numa: tuple[int, ...] = ()) -> ListEntry:
    return ListEntry(name, TrackedDevice(Device(name, name, numa_nodes=numa), reason, 0.0))


def devices(message: bytes | None) -> list[pb.Device]:
    assert message is not None
    return list(pb.ListAndWatchResponse.FromString(message).devices)


async def test_only_a_list_that_changed_is_sent() -> None:
    shown: list[int] = []
    board = DeviceListPublisher(lambda: shown.append(1))
    board.publish([entry("a")])
    with board.follow() as stream:
        assert [(d.ID, d.health) for d in devices(await stream.next())] == [("a", "Healthy")]
        version = board.version
        board.publish([entry("a")])
        assert board.version == version
        # A reason is for people: the kubelet's list is the same with another one.
        board.publish([entry("a", "x")])
        board.publish([entry("a", "y")])
        assert board.version == version + 1
        assert devices(await stream.next())[0].health == "Unhealthy"
        stream.end()
        assert await stream.next() is None
    assert len(shown) == 2


async def test_a_slow_stream_skips_to_the_newest_list() -> None:
    board = DeviceListPublisher(lambda: None)
    with board.follow() as stream:
        for name in "abc":
            board.publish([entry(name)])
        assert [device.ID for device in devices(await stream.next())] == ["c"]


@given(st.lists(st.integers(-2, 3), max_size=3))
def test_topology_is_left_out_where_no_node_is_known_and_never_negative(nodes: list[int]) -> None:
    board = DeviceListPublisher(lambda: None)
    board.publish([entry("a", numa=tuple(nodes))])
    device = devices(board.message)[0]
    assert [node.ID for node in device.topology.nodes] == [node for node in nodes if node >= 0]
    assert device.HasField("topology") == any(node >= 0 for node in nodes)
