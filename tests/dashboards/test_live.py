"""A real Prometheus with the shipped rules scrapes the real exporter and plugin: every query of every
dashboard has data, in health or in trouble, and alerts fire and end as things break and are mended.

Only what takes minutes is rewritten in the rules that are loaded: `for`, `keep_firing_for`, a minute's step.
"""

import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dashboards.generate import HERE
from harness.exporters import Exporters, Machine
from harness.grafana import ALL, Choice, Question, interpolated, options, questions, variables
from harness.processes import Process
from harness.prometheus import Prometheus, free_port
from harness.simulated import SimulatedNode
from harness.waiting import until, until_equal
from simulator.demo import CONFIGURATION
from simulator.demo_npu import NAMESPACE as DRA_NAMESPACE
from simulator.model import ClaimDevice, ClaimSpec, ContainerSpec, PodSpec
from simulator.scenario import Scenario

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(600)]

BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((HERE / "grafana").glob("*.json"))
}

# Beside the demo's: an HCA, two AMD GPUs, and cameras enough for one to fail while it is free.
MORE = """
  - name: amd.com/gpu
    discover:
      - static: {devices: [{name: "0000:c1:00.0", path: /dev/dri0}, {name: "0000:c5:00.0", path: /dev/dri1}]}
    allocate: {devices: [{host: "{{ device.path }}", permissions: rw}]}

  - name: example.com/hca
    discover:
      - static: {devices: [{name: mlx5_0, path: /dev/uverbs0}]}
    allocate: {devices: [{host: "{{ device.path }}", permissions: rw}]}
"""
FILES = (
    *(f"video{n}" for n in range(4)),
    *(f"gpu{n}" for n in range(2)),
    *(f"nic{n}" for n in range(4)),
    *("dri0", "dri1", "uverbs0"),
)
GPUS = ("GPU-7c1f2a90-4d3e-4b8a-9a55-0e6b8f1d2c30", "GPU-a2b94e17-90cd-4f6e-8d21-5b3c7e9f0a41")
INTERFACES = tuple(
    (f"ens{n}f0", address)
    for n, address in enumerate(("0000:3b:02.0", "0000:3b:02.1", "0000:af:02.0", "0000:af:02.1"))
)

PROMETHEUS = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [recording.yaml, alerts.yaml]
scrape_configs:
  - job_name: obs/devicelens
    honor_labels: true
    static_configs:
      - {{targets: ["{exporter}"], labels: {{namespace: obs, pod: devicelens-x2x9k, container: exporter}}}}
      - {{targets: ["{plugin}"], labels: {{namespace: obs, pod: devicelens-x2x9k, container: plugin}}}}
  - {{job_name: dcgm, metrics_path: /dcgm, static_configs: [{{targets: ["{others}"]}}]}}
  - {{job_name: amd, honor_labels: true, metrics_path: /amd, static_configs: [{{targets: ["{others}"]}}]}}
  - {{job_name: node, metrics_path: /node, static_configs: [{{targets: ["{others}"]}}]}}
  - job_name: cadvisor
    honor_labels: true
    metrics_path: /cadvisor
    static_configs: [{{targets: ["{others}"]}}]
"""

# What has data in trouble alone.
WRONG = {
    ("fleet", "Anomalies"),
    ("fleet", "Anomalies by kind"),
    ("fleet", "Unhealthy devices that are held"),
    ("fleet", "Alerts"),
    ("node", "Anomalies"),
    ("node", "Unhealthy devices"),
    ("workload", "Anomalies"),
}
DOWN = {("fleet", "Targets that do not answer")}


def _quick(rules: str) -> str:
    """The rules, with what takes minutes in a second."""
    rules = re.sub(r"^( +for): \d+[mh]$", r"\1: 1s", rules, flags=re.MULTILINE)
    rules = re.sub(r"^( +keep_firing_for): \d+[mh]$", r"\1: 1s", rules, flags=re.MULTILINE)
    return rules.replace(":1m]", ":1s]")


@dataclass
class Site:
    """A node with everything on it, and the Prometheus that watches."""

    node: SimulatedNode
    plugin: Process
    exporter: Process
    prometheus: Prometheus
    devices: Path
    pods: list[PodSpec]
    asked: dict[str, dict[str, Choice]] = field(default_factory=dict[str, dict[str, Choice]])

    async def fires(self, name: str, **labels: str) -> dict[str, Any]:
        """Wait until an alert fires that has these labels; and return it."""

        async def one() -> dict[str, Any] | None:
            firing = (await self.prometheus.firing()).get(name, [])
            return next((alert for alert in firing if labels.items() <= alert["labels"].items()), None)

        return await until(f"{name}{labels} fires", one, pause=0.2)

    async def ends(self, *names: str) -> None:
        """Wait until none of these alerts fires."""

        async def none() -> bool:
            firing = await self.prometheus.firing()
            assert not firing.keys() & set(names), firing.keys()
            return True

        await until(f"{names} end", none, pause=0.2)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    # A short path: unix sockets take 107 bytes.
    host = Path(tempfile.mkdtemp(prefix="dl-")) / "host"
    (host / "dev").mkdir(parents=True)
    for name in FILES:
        (host / "dev" / name).touch()
    configuration = tmp_path / "plugin.yaml"
    configuration.write_text(CONFIGURATION.read_text() + MORE)
    for path in (HERE / "rules").glob("*.yaml"):
        (tmp_path / path.name).write_text(_quick(path.read_text()))
    exporter_at, plugin_at = (f"127.0.0.1:{free_port()}" for _ in range(2))
    node = SimulatedNode("--pods-api", "--cpus", "8")
    common = ("--kubelet.root", str(node.root), "--node-name", node.name)
    plugin = Process(
        *("plugin", "--config", str(configuration), "--host-root", str(host), *common),
        *("--web.listen-address", plugin_at),
    )
    exporter = Process(
        *("exporter", *common, "--web.listen-address", exporter_at, "--poll.interval", "1s"),
        *("--plugin.url", f"http://{plugin_at}", "--history.path", str(tmp_path / "history.db")),
    )
    opening = [
        arrival.pod for arrival in Scenario(Random(1)).opening() if arrival.pod.namespace != DRA_NAMESPACE
    ]
    pods = [*opening, *_further()]
    machine = Machine(
        node=node.name,
        gpus=GPUS,
        amd=[("training", "amd-0", "main")] * 2,
        hcas=["mlx5_0"],
        interfaces=INTERFACES,
        pods=[(pod.namespace, pod.name) for pod in pods],
    )
    try:
        async with AsyncExitStack() as running:
            others = await running.enter_async_context(Exporters(machine))
            await running.enter_async_context(node)
            for process in (plugin, exporter):
                await running.enter_async_context(process)
                await process.url()
            text = PROMETHEUS.format(exporter=exporter_at, plugin=plugin_at, others=others.address)
            prometheus = await running.enter_async_context(Prometheus(tmp_path, text))
            found = Site(node, plugin, exporter, prometheus, host / "dev", pods)
            await _populated(found)
            yield found
    finally:
        shutil.rmtree(host.parent)


def _further() -> Iterable[PodSpec]:
    """Pods for what the demo's do not have: AMD GPUs, an HCA, claims, CPUs and memory of their own."""
    yield PodSpec("amd-0", "training", (ContainerSpec("main", resources={"amd.com/gpu": 2}),))
    yield PodSpec("mpi-0", "training", (ContainerSpec("main", resources={"example.com/hca": 1}),))
    claim = ClaimSpec("gpu-claim", (ClaimDevice("gpu.example.com", "pool-a", "gpu-7"),))
    yield PodSpec(
        *("pinned-0", "research"),
        (ContainerSpec("main", exclusive_cpus=2, memory={"memory": 1 << 30}, claims=(claim,)),),
    )


async def _populated(site: Site) -> None:
    """Let the pods come once the plugin has registered everything, and one of them come a second time."""
    control = site.node.control

    async def registered() -> bool:
        state = await control.state()
        return len(state.resources) == 5 and all(counts.allocatable for counts in state.resources.values())

    await until("everything is registered", registered)
    for pod in site.pods:
        await control.add_pod(pod)

    async def scraped() -> bool:
        return bool(await site.prometheus.query('devicelens_device_owner_info{resource="example.com/hca"}'))

    await until("Prometheus has seen the pods", scraped)
    again = site.pods[0]
    await control.delete_pod(again.namespace, again.name)

    async def released() -> bool:
        return bool(await site.prometheus.query("devicelens_releases_total > 0"))

    # Unless it is seen to go, nobody may ever tell it from its successor of the same name.
    await until("Prometheus has seen a release", released)
    await control.add_pod(again)


class Asking:
    """Every query of every dashboard, asked until it has had data."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.waiting = {
            (q.board, q.panel, q.number): q for name, board in BOARDS.items() for q in questions(name, board)
        }
        self.asked = 0

    async def goes_on_until(self, rest: set[tuple[str, str]]) -> None:
        """Ask those that have had no data again, until only panels of `rest` are left."""

        async def answered() -> bool:
            choices = {name: await self._choices(name) for name in BOARDS}
            for key, question in list(self.waiting.items()):
                if all([await self._has_data(question, chosen) for chosen in choices[question.board]]) or (
                    question.board == "device"
                    and any([await self._has_data(question, chosen) for chosen in choices["device"]])
                ):
                    del self.waiting[key]
            without = sorted({key[:2] for key in self.waiting} - rest)
            assert not without, without
            return True

        await until(f"every query has data, but for {len(rest)} panels", answered, pause=0.5)

    async def _has_data(self, question: Question, chosen: dict[str, Choice]) -> bool:
        expression = interpolated(question.expr, BOARDS[question.board], chosen)
        assert "$" not in expression.replace('"$1"', ""), expression
        self.asked += 1
        if question.instant:
            values = [series["value"][1] for series in await self._prometheus.query(expression)]
        else:
            now = time.time()
            values = [
                value
                for series in await self._prometheus.range(expression, now - 10, now, 1)
                for _, value in series["values"]
            ]
        return any(not math.isnan(float(value)) for value in values)

    async def _choices(self, name: str) -> list[dict[str, Choice]]:
        """What somebody might choose: all of everything, and each thing by its name."""
        board = BOARDS[name]
        if name == "device":
            chosen: dict[str, Choice] = {"datasource": "p", "cluster": ALL, "page": ""}
            nodes = await options(self._prometheus, board, "node", chosen)
            assert len(nodes) == 1, nodes
            chosen["node"] = nodes[0]
            found: list[dict[str, Choice]] = []
            for resource in await options(self._prometheus, board, "resource", chosen):
                of = chosen | {"resource": resource}
                found += [
                    of | {"device": each} for each in await options(self._prometheus, board, "device", of)
                ]
            return found
        everything: dict[str, Choice] = {"datasource": "p", "page": ""}
        by_name: dict[str, Choice] = {"datasource": "p", "page": ""}
        for variable in variables(board).values():
            if variable["type"] != "query" or variable["name"] == "page":
                continue
            values = await options(self._prometheus, board, variable["name"], by_name)
            if variable["name"] == "cluster":
                assert values == []
                everything["cluster"] = by_name["cluster"] = ALL
                continue
            assert values, variable["name"]
            several = bool(variable["multi"])
            everything[variable["name"]] = ALL if several else values[0]
            # What has no workload is not chosen by one.
            by_name[variable["name"]] = (
                (ALL if variable["name"] == "workload" else values) if several else values[0]
            )
        return [everything, by_name]


async def test_every_query_has_data_and_alerts_follow_what_happens(site: Site) -> None:
    prometheus, asking = site.prometheus, Asking(site.prometheus)
    await asking.goes_on_until(WRONG | DOWN)
    await _joins_are_right(prometheus)
    await _the_page_is_where_the_exporter_is(site)
    await until_equal("nothing fires", prometheus.firing, {})

    # A device fails under its pod.
    (held, *_) = await prometheus.query('devicelens_device_owner_info{resource="example.com/camera"}')
    labels = held["metric"]
    (site.devices / labels["device"]).unlink()
    alert = await site.fires(
        "DevicelensUnhealthyDeviceHeld",
        node=labels["node"],
        resource=labels["resource"],
        parent=labels["device"],
    )
    assert alert["annotations"]["description"].endswith(f"Pods: {labels['namespace']}/{labels['pod']}.")
    await asking.goes_on_until(DOWN)
    (site.devices / labels["device"]).touch()
    await site.ends("DevicelensUnhealthyDeviceHeld")

    # The plugin ends, as the kernel would end it.
    await site.plugin.kill()
    await site.fires("DevicelensResourceUnavailable", resource="example.com/camera", node=site.node.name)
    await site.fires("DevicelensPluginDown", node=site.node.name)
    await site.plugin.start()
    await site.ends("DevicelensResourceUnavailable", "DevicelensPluginDown")

    # The exporter ends.
    await site.exporter.kill()
    down = await site.fires("DevicelensExporterDown", node=site.node.name)
    assert f"node {site.node.name} (127.0.0.1:" in down["annotations"]["description"]
    await asking.goes_on_until(set())
    await site.exporter.start()
    await site.ends("DevicelensExporterDown", "DevicelensAbsent")
    await _every_rule_works(prometheus)
    print(f"{asking.asked} queries")


async def _joins_are_right(prometheus: Prometheus) -> None:
    """Utilisation and bytes are those that the exporters say of the device behind each holding."""
    for series in await prometheus.query("holding:devicelens_utilisation:ratio"):
        labels, value = series["metric"], float(series["value"][1])
        if labels["resource"] == "amd.com/gpu":
            assert (labels["scope"], value) == ("container", 0.25)
        else:
            assert (labels["scope"], value) == ("shared", (40 + GPUS.index(labels["parent"])) / 100)
    held = await prometheus.query(
        'count by (resource) (holding:devicelens_owner:info{resource=~".+/(gpu|nic|hca)"})'
    )
    joined = await prometheus.query(
        "count by (resource) "
        "(holding:devicelens_utilisation:ratio or holding:devicelens_network_receive_bytes:rate5m)"
    )
    assert {s["metric"]["resource"]: s["value"][1] for s in held} == {
        s["metric"]["resource"]: s["value"][1] for s in joined
    }
    for series in await prometheus.query("holding:devicelens_network_receive_bytes:rate5m"):
        assert 0 < float(series["value"][1]) < 2000


async def _the_page_is_where_the_exporter_is(site: Site) -> None:
    chosen: dict[str, Choice] = {"datasource": "p", "cluster": ALL, "node": site.node.name}
    assert await options(site.prometheus, BOARDS["node"], "page", chosen) == [await site.exporter.url()]


async def _every_rule_works(prometheus: Prometheus) -> None:
    """No rule has failed, not even while processes came and went; each recording rule has recorded."""
    groups = (await prometheus.ask("rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 50
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    failures = await prometheus.query("sum by (rule_group) (prometheus_rule_evaluation_failures_total) > 0")
    assert failures == []
    # MIG has no part in the demo.
    without = {
        "cluster_uuid_instance:gpu_utilisation:ratio",
        "cluster_namespace_pod_container:mig_utilisation:ratio",
    }
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    known = set(await prometheus.ask("label/__name__/values"))
    assert recorded - known == without
