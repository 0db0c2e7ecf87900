"""The whole against a model: anything may happen to a node in any order, and no owner is ever wrong.

A simulated kubelet in the test's own process, so that the truth is known to the moment, and the plugin and
the exporter as processes of their own. A random walk, repeated by its seed as far as processes let it:

    DEVICELENS_MODEL_STEPS=3000 DEVICELENS_MODEL_SEED=7 pytest tests/e2e/test_model.py

All the while /metrics is scraped, and nothing that it names may be anything but an owner at a moment that it
may tell of. Whenever the node settles, every place that tells owners tells the truth, and the whole of it.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from harness import owners
from harness.claimed import Dra, dra, free, offered, tainted, uses
from harness.processes import Process
from harness.trials.owners_check import check_history, owner_of, owners_in
from harness.truth import (
    CLOCKS,
    Claimed,
    FormerOwners,
    Known,
    Owner,
    Scrape,
    Truth,
    claims_of,
    device_called,
    devices_of,
    lies,
)
from harness.waiting import until, until_holds
from simulator import Faults, SimulatedKubelet
from simulator.dra_objects import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    Object,
    claim,
    claim_template,
    device,
    device_class,
    first_available,
    request,
    taint,
)
from simulator.model import AdmissionError, ClaimRef, ContainerError, ContainerSpec, PodClaim, PodSpec

STEPS = int(os.environ.get("DEVICELENS_MODEL_STEPS", "100"))
SEED = os.environ.get("DEVICELENS_MODEL_SEED")

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(120 + STEPS)]

STALE_AFTER = 3.0
UNPROVEN = 5.0
"""Seconds around an exporter's end and its successor's start within which it may not know all uids."""
BRIEF = 1.0
"""Seconds within which a pod may come and go before anybody tells its uid."""
GPU, NIC, SHARED = "model.test/gpu", "model.test/nic", "model.test/shared"
CONFIGURATION = f"""\
version: 1
resources:
  - {{name: {GPU}, discover: [{{files: {{directory: /etc/gpus}}}}], numa: 0}}
  - {{name: {NIC}, discover: [{{files: {{directory: /etc/nics}}}}], numa: 1}}
  - {{name: {SHARED}, discover: [{{files: {{directory: /etc/cards}}}}], share: {{replicas: 3}}}}
"""
DEVICES = {"gpus": 8, "nics": 5, "cards": 4}
NAMES = tuple((namespace, f"pod-{number}") for namespace in ("default", "other") for number in range(8))
FAULTS = (
    Faults(hang=True),
    Faults(slow=0.05),
    Faults(slow=0.38),
    Faults(slow=2.0),
    Faults(rate_limited=1),
    Faults(rate_limited=2),
    Faults(rate_limited=3),
    Faults(garbage=True),
    Faults(oversized=True),
    Faults(gone=True),
    Faults(error="INTERNAL"),
    Faults(error="UNIMPLEMENTED"),
    Faults(error="UNAVAILABLE"),
)
DRIVER, DRA_GPU = "dra.model.test", "model.test/dra-gpu"
TEMPLATE_REQUESTS = {
    "one": request("r", "gpu"),
    "two": request("r", "gpu", 2),
    "either": first_available("r", request("both", "gpu", 2), request("any", "gpu")),
    "part": request("r", "card", capacity={"memory": "4Gi"}),
    "watch": request("all", "any", every=True, admin=True),
}
METHODS = ((), (), ("List",), ("GetAllocatableResources",))


@dataclass
class Model:
    """The node, the processes beside it, and what is going on."""

    order: random.Random
    kubelet: SimulatedKubelet
    truth: Truth
    exporter: Process
    plugin: Process
    host: Path
    identities: bool
    dra: Dra
    url: str = ""
    lies: list[str] = field(default_factory=list[str])
    scrapes: int = 0
    answers: float = 0.0
    named: int = 0
    counted: dict[str, float] = field(default_factory=dict[str, float])
    held_at_start: dict[str, float] | None = None
    told: list[str] = field(default_factory=list[str])
    starts: list[float] = field(default_factory=lambda: [time.time()])

    # What may happen

    def claim(self) -> tuple[PodClaim, ...]:
        """Now and then one of a template, or one that other pods share."""
        kind = self.order.choice(("", "", "", "", "common", *TEMPLATE_REQUESTS))
        if kind == "common":
            return (PodClaim("claim", claim="common"),)
        return (PodClaim("claim", template=kind),) if kind else ()

    def containers(self, *, claim: bool) -> tuple[tuple[ContainerSpec, ...], tuple[ContainerSpec, ...]]:
        """App containers, and init containers of both kinds."""
        order = self.order

        def wish(number: int) -> dict[str, int]:
            offers = (GPU, NIC, SHARED) if number else (GPU, NIC, SHARED, DRA_GPU)
            resources = order.sample(offers, order.choice((0, 1, 1, 1, 1, 2)))
            return {resource: order.choice((1, 1, 2)) for resource in resources}

        apps = tuple(
            ContainerSpec(
                f"c{number}",
                resources=wish(number),
                exclusive_cpus=order.choice((0, 0, 0, 1)),
                claim_refs=(ClaimRef("claim"),) if claim and order.random() < 0.8 else (),
            )
            for number in range(order.choice((1, 1, 2)))
        )
        kind = order.random()
        if kind < 0.15:
            return apps, (ContainerSpec("init", resources={GPU: 1}),)
        if kind < 0.3:
            return apps, (ContainerSpec("side", resources={SHARED: 1}, sidecar=True),)
        return apps, ()

    def active(self) -> list[tuple[str, str]]:
        """The pods that count."""
        return sorted(self.truth.uids())

    async def add(self, key: tuple[str, str] | None = None) -> None:
        """A pod comes; its name may be one that was there before."""
        taken = set(self.active())
        free = [name for name in NAMES if name not in taken]
        if key is None:
            if not free:
                return
            key = self.order.choice(free)
        claim = self.claim()
        apps, inits = self.containers(claim=bool(claim))
        spec = PodSpec(key[1], key[0], apps, inits, resource_claims=claim)
        adding = asyncio.create_task(self.kubelet.add_pod(spec))
        await asyncio.sleep(0)
        if any((one.spec.namespace, one.spec.name) == key for one in self.kubelet.unscheduled()):
            await self.kubelet.delete_pod(*key)
        with suppress(AdmissionError, ContainerError, ValueError, RuntimeError):
            await adding

    async def delete(self) -> None:
        """A pod goes, perhaps one that has ended."""
        pods = [(pod.spec.namespace, pod.spec.name) for pod in self.kubelet.pods()]
        if pods:
            with suppress(KeyError):
                await self.kubelet.delete_pod(*self.order.choice(pods))

    async def complete(self) -> None:
        """A pod's containers end."""
        if pods := self.active():
            with suppress(KeyError):
                failed = self.order.random() < 0.5
                await self.kubelet.complete_pod(*self.order.choice(pods), failed=failed)

    async def succeed(self) -> None:
        """A pod goes and another of its name comes at once, as a StatefulSet's does."""
        if pods := self.active():
            key = self.order.choice(pods)
            with suppress(KeyError):
                await self.kubelet.delete_pod(*key)
            await self.add(key)

    async def burst(self) -> None:
        """Several things at once."""
        what = [self.order.choice((self.add, self.delete, self.complete)) for _ in range(5)]
        await asyncio.gather(*(one() for one in what))

    async def restart_container(self) -> None:
        """A container ends and starts again; its pod keeps what it has."""
        pods = [pod for pod in self.kubelet.pods() if pod.active]
        if pods:
            pod = self.order.choice(pods)
            name = self.order.choice(pod.spec.containers).name
            with suppress(KeyError, ContainerError):
                await self.kubelet.restart_container(pod.spec.namespace, pod.spec.name, name)

    async def plug(self) -> None:
        """A device comes or goes, held or not."""
        directory = self.order.choice(sorted(DEVICES))
        path = self.host / "etc" / directory / f"{directory[:-1]}-{self.order.randrange(DEVICES[directory])}"
        if path.exists() and self.order.random() < 0.5:
            path.unlink()
        else:
            path.touch()

    async def offer(self) -> None:
        """The driver publishes its devices anew, some of them tainted or gone."""
        await self.dra.driver.offer(
            [one for one in _published(self.order.choice((None, 1, 3))) if self.order.random() < 0.95]
        )

    async def restart_driver(self) -> None:
        """The driver is away for a moment; claims wait for it."""
        await self.dra.driver.stop()
        things = [asyncio.create_task(self.something_small()) for _ in range(self.order.choice((0, 1, 3)))]
        await asyncio.sleep(self.order.choice((0.0, 0.3)))
        await self.dra.driver.start()
        await asyncio.gather(*things)

    async def restart_kubelet(self) -> None:
        """The kubelet restarts, its API server is heard sooner or later, and pods end meanwhile."""
        delay = self.order.choice((0.0, 0.3, 0.8, 2.0))
        node = self.kubelet._node  # pyright: ignore[reportPrivateUsage]
        node.settings = replace(node.settings, sync_delay=delay)
        restart = asyncio.create_task(self.kubelet.restart(self.order.choice((0.0, 0.1, 0.5))))
        if self.order.random() < 0.3:
            await self.complete()
        await restart

    async def churn_restart(self) -> None:
        """The kubelet restarts, and in those very seconds pods end and others get their devices."""
        delay = self.order.choice((0.0, 0.3, 0.85, 2.0))
        node = self.kubelet._node  # pyright: ignore[reportPrivateUsage]
        node.settings = replace(node.settings, sync_delay=delay)
        await self.complete()
        restart = asyncio.create_task(self.kubelet.restart(self.order.choice((0.0, 0.1, 0.5))))
        await self.complete()
        await restart
        await self.complete()
        # A kubelet admits nobody before it has synced, and no plugin's devices before that registered.
        what = [self.order.choice((self.add, self.add, self.succeed, self.delete)) for _ in range(4)]
        await asyncio.gather(*(one() for one in what))
        await self.kubelet.wait_until(
            lambda kubelet: all(kubelet.allocatable(name) for name in (GPU, NIC, SHARED)), limit=30.0
        )
        for _ in range(4):
            await self.add()

    async def fault(self) -> None:
        """PodResources misbehaves, until something else does or it is over."""
        methods = self.order.choice(METHODS)
        await self.kubelet.set_faults(replace(self.order.choice(FAULTS), methods=methods))

    async def cure(self) -> None:
        """PodResources is well again."""
        await self.kubelet.set_faults(Faults())

    async def linger(self) -> None:
        """Time passes; now and then more than the stale limit."""
        await asyncio.sleep(self.order.choice((0.05, 0.2, 0.6, STALE_AFTER + 0.5)))

    async def freeze(self) -> None:
        """The exporter is stopped for a moment, and goes on."""
        os.kill(self.exporter.pid, signal.SIGSTOP)
        try:
            await self.something_small()
            await asyncio.sleep(self.order.choice((0.1, 0.5, 1.0)))
        finally:
            os.kill(self.exporter.pid, signal.SIGCONT)

    async def kill_exporter(self) -> None:
        """The exporter is killed; things happen; another one starts with the history of the first."""
        self.url = ""
        await self.exporter.kill()
        for _ in range(self.order.choice((0, 1, 3))):
            await self.something_small()
        self.held_at_start = None
        self.counted = {}
        self.exporter.lines.clear()
        self.starts.append(time.time())
        await self.exporter.start()
        self.url = await self.exporter.url()
        self.starts.append(time.time())

    async def kill_plugin(self) -> None:
        """The plugin is killed; things happen without it; another one starts."""
        await self.plugin.kill()
        for _ in range(self.order.choice((0, 1, 3))):
            await self.something_small()
        await self.plugin.start()

    async def something_small(self) -> None:
        """One of the things that take no time."""
        await self.order.choice((self.add, self.delete, self.complete, self.succeed))()

    async def step(self) -> None:
        """Anything."""
        things: dict[Callable[[], Awaitable[None]], float] = {
            self.add: 30,
            self.delete: 20,
            self.complete: 8,
            self.succeed: 8,
            self.burst: 5,
            self.restart_container: 2,
            self.plug: 6,
            self.offer: 3,
            self.restart_driver: 1.5,
            self.restart_kubelet: 3,
            self.fault: 4,
            self.cure: 7,
            self.linger: 2,
            self.freeze: 1.5,
            self.kill_exporter: 1.5,
            self.kill_plugin: 1.5,
            self.settle: 9,
        }
        (thing,) = self.order.choices(tuple(things), tuple(things.values()))
        self.told.append(f"{time.time():.3f} {thing.__name__}")
        await thing()
        await until_holds(lambda: self.scrapes >= len(self.told), "as many scrapes as steps")
        self.truth.look()
        assert not self.lies, self.account()

    def account(self) -> str:
        """What was wrong, and what had happened by then."""
        return "\n".join([*self.lies[:20], "--- steps", *self.told[-30:]])

    # What must hold

    async def watch(self) -> None:
        """Scrape again and again and compare with what was true; until cancelled."""
        timeout = aiohttp.ClientTimeout(total=10)
        former: tuple[object, FormerOwners] | None = None
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(0.03)
                url, counted = self.url, self.counted
                if not url:
                    continue
                asked = time.time()
                try:
                    async with session.get(url + "/metrics") as answer:
                        text = await answer.text()
                except (aiohttp.ClientError, TimeoutError):
                    continue
                answered = time.time()
                self.truth.look()
                scrape = Scrape(text)
                self.lies += lies(scrape, self.truth, asked=asked, answered=answered, stale_after=STALE_AFTER)
                if former is None or former[0] is not counted:
                    former = counted, FormerOwners(self.truth)
                self.lies += former[1].named(scrape, asked)
                self.scrapes += 1
                self.answers = scrape.answers()
                self.named += len(scrape.owners())
                counters = scrape.counters()
                self.lies += [
                    f"{name} fell from {before} to {counters.get(name)}"
                    for name, before in counted.items()
                    if counters.get(name, -1.0) < before
                ]
                counted.update(counters)

    async def settle(self) -> None:
        """Nothing goes wrong any more: everything must be told as it is."""
        await self.cure()
        await until("settling", self.settled, limit=60.0, pause=0.1)

    async def settled(self) -> bool:
        """Compare every place that tells owners."""
        assert not self.lies, self.account()
        self.truth.look()
        changes = self.truth.changes
        listed, allocatable = self.kubelet.pod_resources(), self.kubelet.allocatable_resources()
        wanted = frozenset(
            owner if self.identities else owner._replace(uid="") for owner in self.truth.present
        )
        known, claims = devices_of(listed, allocatable), claims_of(listed)
        holding, asked_by = claims, dict[Owner, set[str]]()
        if self.identities:
            found = uses(self.kubelet)
            claims = frozenset(one.claimed for one in found)
            holding = frozenset(one.claimed for one in found if not one.admin)
            assert claims <= claims_of(listed)
            # The Pods API forgets which extended resource a claim serves (kubelet 1.36).
            asked_by = {one.owner: {one.requested_as, one.device_class} for one in found if not one.admin}
            wanted = frozenset(one for one in wanted if one.resource != DRIVER or one in asked_by)
            assert asked_by.keys() <= wanted
            known |= {key: _known(one) for key, one in offered(self.kubelet).items()}
        for key in {(one.driver, device_called(one.pool, one.device, "n")) for one in claims}:
            known.setdefault(key, Known("", (), None))
        status, text = await owners.get(self.url, "/-/ready")
        assert status == 200, text
        known |= await self.no_longer_offered(known)
        await self.metrics_tell(wanted, known, claims, asked_by)
        await self.api_tells(wanted, known, holding)
        await check_history(self.url, wanted, time.time())
        self.truth.look()
        assert changes == self.truth.changes, "it had not settled"
        return True

    async def no_longer_offered(self, known: dict[tuple[str, str], Known]) -> dict[tuple[str, str], Known]:
        """The devices that the exporter remembers: none that the kubelet names, and none with a holder."""
        devices = (await owners.get_json(self.url, "/api/v1/devices"))["devices"]
        gone = {
            (one["resource"], one["device"]): Known(one["parent"] or "", tuple(one["numa_nodes"]), False)
            for one in devices
            if one["no_longer_offered_since"] is not None and not one["holders"]
        }
        assert not gone.keys() & known.keys()
        return gone

    async def metrics_tell(
        self,
        wanted: frozenset[Owner],
        known: dict[tuple[str, str], Known],
        claims: frozenset[Claimed],
        asked_by: dict[Owner, set[str]],
    ) -> None:
        """Both formats."""
        for accept, parse in (("text/plain", plain), ("application/openmetrics-text", openmetrics)):
            _, text = await owners.get(self.url, "/metrics", headers={"Accept": accept})
            samples = [sample for family in parse(text) for sample in family.samples]

            def of(name: str, samples: list[Any] = samples) -> list[Any]:
                return [sample for sample in samples if sample.name == name]

            found = [owner_of(sample.labels) for sample in of("devicelens_device_owner_info")]
            assert sorted(found) == sorted(wanted)
            for sample in of("devicelens_device_owner_info"):
                owner, asked = owner_of(sample.labels), sample.labels["requested_as"]
                assert asked in asked_by.get(owner, {"" if owner.resource == DRIVER else owner.resource})
            assert {
                (labels["resource"], labels["device"]): (labels["parent"], labels["numa_node"])
                for labels in (sample.labels for sample in of("devicelens_device_info"))
            } == {key: (one.parent, ",".join(map(str, one.numa_nodes))) for key, one in known.items()}
            assert {
                (labels["resource"], labels["device"]): value == 1
                for labels, value in ((one.labels, one.value) for one in of("devicelens_device_healthy"))
            } == {key: one.healthy for key, one in known.items() if one.healthy is not None}
            assert {
                Claimed(*(sample.labels[name] for name in _CLAIMED))
                for sample in of("devicelens_claim_device_info")
            } == claims
            held = {(owner.namespace, owner.pod) for owner in wanted}
            held |= {(claimed.namespace, claimed.pod) for claimed in claims}
            held |= {key for key in self.truth.uids() if self.pins(key)}
            for sample in samples:
                if sample.labels.get("pod"):
                    assert (sample.labels["namespace"], sample.labels["pod"]) in held, sample
            self.counts(of, wanted)

    def pins(self, key: tuple[str, str]) -> bool:
        """Whether a pod has CPUs of its own."""
        return any(
            container.cpu_ids
            for pod in self.kubelet.pod_resources().pod_resources
            if (pod.namespace, pod.name) == key
            for container in pod.containers
        )

    def counts(self, of: Callable[[str], list[Any]], wanted: frozenset[Owner]) -> None:
        """What came less what went is what is there more than in the first look."""
        balance: dict[str, float] = {}
        for sample in of("devicelens_allocations_total"):
            balance[sample.labels["resource"]] = sample.value
        for sample in of("devicelens_releases_total"):
            balance[sample.labels["resource"]] -= sample.value
        before = {
            resource: sum(owner.resource == resource for owner in wanted) - more
            for resource, more in balance.items()
        }
        if self.held_at_start is None:
            self.held_at_start = before
        for resource, count in before.items():
            assert self.held_at_start.setdefault(resource, count) == count

    async def api_tells(
        self, wanted: frozenset[Owner], known: dict[tuple[str, str], Known], claims: frozenset[Claimed]
    ) -> None:
        """Devices with their holders, and claims."""
        document = await owners.get_json(self.url, "/api/v1/devices")
        assert document["freshness"] == "fresh"
        devices = document["devices"]
        assert {
            (one["resource"], one["device"]): Known(
                one["parent"] or "", tuple(one["numa_nodes"]), one["healthy"]
            )
            for one in devices
        } == known
        found = owners_in(document)
        assert sorted(found) == sorted(wanted)
        is_free = {(one["resource"], one["device"]): one["free"] for one in devices if one["claimed"]}
        if self.identities:
            assert is_free == dict.fromkeys(is_free, False) | dict.fromkeys(free(self.kubelet), True)
        now = time.time()
        holders = [holder for one in devices for holder in one["holders"]]
        for owner, holder in zip(found, holders, strict=True):
            begun = max(span.begin for span in self.truth.of(owner) if span.end is None)
            since = datetime.fromisoformat(holder["since"]).timestamp()
            assert since <= now + CLOCKS
            if self.identities and not self.unproven(owner, since):
                assert since >= begun - CLOCKS, f"{owner} is said to hold it {begun - since:.3f} s too long"
        document = await owners.get_json(self.url, "/api/v1/claims")
        assert {
            Claimed(
                *(one["driver"], one["pool"], one["device"], one["share_id"] or ""),
                *(holder[name] for name in _CLAIMED[4:]),
            )
            for one in document["claims"]
            for holder in one["holders"]
        } == claims

    def unproven(self, owner: Owner, since: float) -> bool:
        """Whether a pod of the same name held it when an exporter had just started or was to be killed, or
        held it for a moment.

        One whose uid nobody has told yet, and that is gone before anybody does, is taken for its successor
        if that gets the same device: nothing but their uids would tell them apart.
        """
        anybody = owner._replace(uid="")
        brief = any(
            span.begin - CLOCKS <= since <= span.end + CLOCKS and span.end - span.begin <= BRIEF
            for span in self.truth.of(anybody)
            if span.end is not None
        )
        started = any(abs(since - start) <= UNPROVEN for start in self.starts)
        return brief or (started and self.truth.held(anybody, since, since))

    def bounded(self, row: Any) -> bool:
        """Whether a row of history is of a holding that was there, within its bounds."""
        owner = owner_of(row)
        if any(_bounds(row, span) for span in self.truth.of(owner)):
            return True
        seen = datetime.fromisoformat(row["start"]["not_after"]).timestamp()
        return self.unproven(owner, seen)

    async def past_is_true(self) -> int:
        """Every row of history, ended or not, is of a holding that was there; how many there are."""
        rows: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            path = f"/api/v1/history?limit=1000{cursor and f'&cursor={cursor}'}"
            document = await owners.get_json(self.url, path)
            rows += document["holdings"]
            cursor = document["next"]
        wrong = [row for row in rows if not self.bounded(row)]
        if self.identities:
            assert not wrong, f"{len(wrong)} of {len(rows)}: " + "\n".join(
                f"{json.dumps(row)} {self.truth.of(owner_of(row))}" for row in wrong[:5]
            )
        return len(rows)


_CLAIMED = Claimed._fields


def _bounds(row: Any, span: Any) -> bool:
    """Whether the row's bounds hold the times at which it really began and ended."""
    return _within(row["start"], span.begin) and (
        row["end"] is None if span.end is None else row["end"] is not None and _within(row["end"], span.end)
    )


def _within(bound: Any, moment: float) -> bool:
    earliest, latest = (
        None if bound[name] is None else datetime.fromisoformat(bound[name]).timestamp()
        for name in ("not_before", "not_after")
    )
    return (earliest is None or moment >= earliest - CLOCKS) and (latest is None or moment <= latest + CLOCKS)


def _published(tainted_one: int | None = None) -> list[Object]:
    """What the driver publishes: six GPUs, of which one may be tainted, and two cards that claims share."""
    gpus = [
        device(
            f"gpu-{n}",
            attributes={"kind": "gpu", "resource.kubernetes.io/numaNode": n % 2},
            taints=[taint("model.test/broken")] if n == tainted_one else (),
        )
        for n in range(6)
    ]
    cards = [
        device(f"card-{n}", attributes={"kind": "card"}, capacity={"memory": "10Gi"}, shareable=True)
        for n in range(2)
    ]
    return gpus + cards


def _known(published: Object) -> Known:
    """What is true of a device of a slice."""
    numa = published["attributes"].get("resource.kubernetes.io/numaNode")
    return Known("", () if numa is None else (numa["int"],), False if tainted(published) else None)


def _create_claims(kubelet: SimulatedKubelet) -> None:
    """The classes, and in each namespace the templates and a claim that pods share."""
    create, gpu = kubelet.objects.create, {"kind": "gpu"}
    create(CLASSES, device_class("any", driver=DRIVER))
    create(CLASSES, device_class("gpu", driver=DRIVER, attributes=gpu, extended_resource=DRA_GPU))
    create(CLASSES, device_class("card", driver=DRIVER, attributes={"kind": "card"}))
    for namespace in sorted({namespace for namespace, _ in NAMES}):
        create(CLAIMS, claim("common", request("r", "gpu"), namespace=namespace))
        for name, wanted in TEMPLATE_REQUESTS.items():
            create(TEMPLATES, claim_template(name, wanted, namespace=namespace))


@asynccontextmanager
async def _model(seed: int, source: str) -> AsyncGenerator[Model]:
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    root, host = directory / "k", directory / "h"
    for name, count in DEVICES.items():
        (host / "etc" / name).mkdir(parents=True)
        for number in range(count):
            (host / "etc" / name / f"{name[:-1]}-{number}").touch()
    (directory / "plugin.yaml").write_text(CONFIGURATION)
    common = ("--kubelet.root", str(root), "--node-name", "n")
    truth = Truth(node="n")
    slices = source == "pods-api"
    exporter = Process(
        "exporter",
        *(*common, "--web.listen-address", "127.0.0.1:0", "--history.path", str(directory / "h.db")),
        *("--poll.interval", "500ms", "--poll.timeout", "400ms", "--stale-after", f"{STALE_AFTER:g}s"),
        *("--pods.source", source, "--dra.source", "slices" if slices else "none"),
        *(("--kubeconfig", str(directory / "kubeconfig")) if slices else ()),
    )
    plugin = Process(
        "plugin",
        *(*common, "--config", str(directory / "plugin.yaml"), "--host-root", str(host)),
        *("--web.listen-address", f"unix:{directory / 'p.sock'}"),
    )
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        kubelet = SimulatedKubelet(root, node_name="n", seed=seed, pods_api=slices, on_event=truth.told)
        truth.kubelet = await stack.enter_async_context(kubelet)
        stack.enter_context(kubelet.following(truth.followed))
        _create_claims(kubelet)
        driver = await stack.enter_async_context(dra(kubelet, directory, DRIVER, _published()))
        await stack.enter_async_context(plugin)
        await stack.enter_async_context(exporter)
        model = Model(
            *(random.Random(seed), kubelet, truth, exporter, plugin, host),
            identities=slices,
            dra=driver,
            url=await exporter.url(),
        )
        await kubelet.wait_until(lambda k: len(k.resources()) == 3, limit=30.0)
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(model.watch())
            try:
                yield model
            finally:
                watcher.cancel()


@pytest.mark.parametrize("source", ["pods-api", "none"])
async def test_no_owner_is_ever_wrong(source: str) -> None:
    seed = int(SEED) if SEED else (11 if source == "none" else 12)
    print(f"DEVICELENS_MODEL_SEED={seed} DEVICELENS_MODEL_STEPS={STEPS} --pods.source {source}")
    async with _model(seed, source) as model:
        for _ in range(STEPS):
            await model.step()
        await model.settle()
        rows = await model.past_is_true()
    assert not model.lies, model.account()
    print(
        f"{model.scrapes} scrapes, {model.named} owners named, {rows} holdings, {model.truth.changes} changes"
    )
    # A run that saw nothing has shown nothing. A slow machine names fewer owners, and scrapes once a step.
    assert model.scrapes >= STEPS
    assert model.named > STEPS // 10
    assert model.truth.changes > STEPS // 10
    assert rows > STEPS // 30


def _answered(model: Model, times: float) -> bool:
    return model.answers >= times


def _scraped(model: Model, times: int) -> bool:
    return model.scrapes >= times


async def test_no_owner_is_wrong_while_pods_end_and_come_with_a_restart() -> None:
    """Nothing but List says who the pods are: the former holder is named until List names another, and is
    marked; not for a moment longer.
    """
    seed = int(SEED) if SEED else 13
    async with _model(seed, "none") as model:
        for _ in range(6):
            await model.add()
        for _ in range(max(4, STEPS // 20)):
            model.told.append(f"{time.time():.3f} churn_restart")
            await model.churn_restart()
            # As many as it takes to find a former owner, and scrapes after them.
            await until_holds(partial(_answered, model, model.answers + 4), "more answers of List")
            await until_holds(partial(_scraped, model, model.scrapes + 2), "more scrapes")
            assert not model.lies, model.account()
        await model.settle()
    assert not model.lies, model.account()
    assert model.named
    assert model.truth.changes > STEPS // 10
