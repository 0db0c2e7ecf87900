"""A default install on a kubelet with the feature gate PodsAPI off: one line says so, nothing fails."""

import pytest

from harness import owners
from harness.node import Node, Pod
from harness.stack import Stack
from kubelet.podresources import connect_error


async def test_pods_api_that_is_off_is_no_failure(node: Node) -> None:
    directory = node.root / "pods-api"
    directory.mkdir(exist_ok=True)  # as the manifest does
    socket = directory / "pods-api.sock"
    if connect_error(socket) == 0:
        pytest.skip("this kubelet serves the Pods API")
    left_behind = socket.exists()  # by a kubelet that had the gate on
    async with Stack(node) as stack:
        stack.add_devices("cherry")
        await stack.allocatable_is(1)
        await node.add_pod(Pod("p", {"main": {stack.resource: 1}}))
        await stack.everyone_says(await stack.held())
        assert (await owners.scrape(stack.url)).value("devicelens_pods_source_up", source="pods-api") == 0
        what = f"no process serves {socket}" if left_behind else f"there is no socket {socket}"
        why = f"{what}: the kubelet's feature gate PodsAPI is off"
        (line,) = [line for line in stack.exporter.lines if "component=identities" in line]
        assert "level=info" in line
        assert why in line
        triggers = (await owners.get_json(stack.url, "/api/v1/status"))["triggers"]
        assert any(trigger.startswith(f"pods not watched: {why}") for trigger in triggers)
        assert not [line for line in stack.exporter.lines if "the pod source fails" in line]
        await node.delete_pod("p")
