"""Without the Pods API, and long before the next poll, the end of a pod is seen by its cgroup."""

from pathlib import Path

from harness import owners
from harness.node import Pod
from harness.nodes import REAL, running_node
from harness.stack import Stack
from harness.waiting import until

LONG = ("--poll.interval", "1h", "--stale-after", "1h", "--pods.source", "none")
HELD = "devicelens_resource_allocated_devices"


async def test_a_release_shows_when_the_cgroup_of_the_pod_is_removed() -> None:
    async with running_node("--cgroup-driver", "systemd") as node:
        cgroups = Path("/sys/fs/cgroup") if REAL else node.root / "cgroup"
        async with Stack(node, "--cgroup.root", str(cgroups), *LONG) as stack:

            async def refreshes() -> float:
                found = (await owners.scrape(stack.url)).value("devicelens_refreshes_total", trigger="cgroup")
                assert found is not None
                return found

            stack.add_devices("apple", "pear")
            await stack.allocatable_is(2)
            for name in ("deleted", "completed"):
                await node.add_pod(Pod(name, {"main": {stack.resource: 1}}))
            await stack.metric_is(2, HELD)
            for left, name, end in ((1, "deleted", node.delete_pod), (0, "completed", node.end_pod)):
                before = await refreshes()
                await end(name)
                await stack.metric_is(left, HELD)

                async def more(before: float = before) -> bool:
                    return await refreshes() > before

                await until("a refresh because of a cgroup", more)
