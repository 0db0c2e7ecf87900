"""Messages of every kind through everything that reads them: nothing ends, nothing hangs, no owner is wrong.

Answers follow one another, as what a reading keeps of the one before is where it may go wrong. Each is read a
second time, whole and without memory, and the two must agree. DEVICELENS_FUZZ says how many;
DEVICELENS_FUZZ_SEED which.
"""

import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from exporter.mapping.holdings import holdings
from exporter.mapping.identity import EMPTY_VIEW, PodRegistry, Poll
from exporter.mapping.model import Snapshot
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.state import Moment, State
from exporter.metrics.families import MappingFamilies
from exporter.metrics.series_limit import plan_series
from exporter.pods.pods_api import PodsApi
from exporter.pods.source import LabelFilter, PodGone, PodSeen, UnreadableEvent
from exporter.refresh.pipeline import SnapshotPipeline
from exporter.views.query import PageQuery
from exporter.web.pages.rows import row
from exporter.web.pages.status import status_page
from harness import mutation, recordings
from harness.answers import Answers
from harness.truth import claims_of, devices_of, owners_of
from kubelet.paths import KubeletPaths
from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2 as pods_pb2
from kubelet.podresources import UNDECODABLE, KubeletError, Raw
from runtime.blocks import plain
from runtime.patterns import compiled

COUNT = int(os.environ.get("DEVICELENS_FUZZ", "1500"))
SEED = int(os.environ.get("DEVICELENS_FUZZ_SEED", "1"))
LIMIT = 2.0
"""Seconds of processor time for one message, amply."""

pytestmark = pytest.mark.timeout(60 + COUNT // 20)

_LIFE = 200
"""Answers that one exporter gets."""
_PAGE = 10
"""Of so many answers one is shown on the page."""

_OWNER = re.compile(r"^devicelens_device_owner_info\{(.*)\} 1\.0$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def _unescaped(value: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value)


def _named(text: str) -> list[tuple[str, ...]]:
    """The owners that an exposition names."""
    found: list[tuple[str, ...]] = []
    for match in _OWNER.finditer(text):
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(match[1])}
        found.append(
            (
                *(labels["resource"], labels["device"]),
                *(labels["namespace"], labels["pod"], labels["container"]),
            )
        )
    return found


class _Exporter:
    """All that reads answers, from bytes to what is shown."""

    def __init__(self) -> None:
        self.pipeline = SnapshotPipeline(SnapshotBuilder({0: 0, 1: 1}), keep_allocatable=60.0)
        self.families = MappingFamilies("n")
        self.last = Snapshot()
        self.at = 1_800_000_000.0
        self.generation = 0
        self.began = self.ended = self.first = 0

    def read(self, listed: bytes, allocatable: bytes | None, *, asked: bool) -> str:
        """One answer, checked; what came of it."""
        self.at += 1.0
        raw = Raw(listed, allocatable, asked, "v1")
        try:
            news = self.pipeline.process(raw, self.at, poll=Poll(self.at - 0.1, self.at), view=EMPTY_VIEW)
        except KubeletError as error:
            if error.code != UNDECODABLE:
                raise
            return "undecodable"
        if news is None:
            assert not asked
            return "asked again"
        snapshot = news.snapshot
        held = [(*device.key, *holder[:3]) for device in snapshot.devices for holder in device.holders]
        assert len(set(held)) == len(held)
        answer = api_pb2.ListPodResourcesResponse.FromString(listed)
        truth = {owner[:5] for owner in owners_of(answer)}
        assert set(held) == truth
        claims = {
            (*device.claimed.name, one.share_id, one.claim_namespace, one.claim, *one.holder[:3])
            for device in snapshot.devices
            if device.claimed is not None
            for one in device.claimed.through
        }
        assert claims == claims_of(answer)
        if asked and news.allocatable_error is None:
            self._check_allocatable(snapshot, answer, allocatable)
        if news.changes is None:
            assert snapshot == self.last
        self.last = snapshot
        if news.changes is not None:
            if self.generation:
                self.began += len(news.changes.change.began)
                self.ended += len(news.changes.change.ended)
            else:
                self.first = len(held)
            self.generation += 1
        assert self.first + self.began - self.ended == len(held)
        assert set(news.since) == holdings(snapshot)
        state = State(self.generation, snapshot, self.at, self.at, news.since, news.pods, news.anomalies)
        named = _named(plain(self.families.of(state, plan_series(state, 100_000))).decode())
        assert sorted(named) == sorted(truth)
        if not int(self.at) % _PAGE:
            moment = Moment(state, "n", self.at, 60.0)
            page = status_page(moment, PageQuery(), tag="t", triggers=())
            shown = [row(item, moment) for _, items in page.sections for item in items]
            assert sum(len(one.lines) for one in shown) <= len(held)
            assert bool(shown) == bool(snapshot.devices)
        return "read"

    def _check_allocatable(
        self, snapshot: Snapshot, listed: api_pb2.ListPodResourcesResponse, allocatable: bytes | None
    ) -> None:
        assert snapshot.complete == (allocatable is not None)
        offered = api_pb2.AllocatableResourcesResponse.FromString(allocatable or b"")
        claimed = {device.key for device in snapshot.devices if device.claimed is not None}
        every = [device for device in snapshot.devices if device.key not in claimed]
        named = [device for device in every if device.no_longer_offered_since is None]
        assert {device.key: (device.numa_nodes, device.allocatable) for device in named} == {
            key: (known.numa_nodes, allocatable is None or known.healthy)
            for key, known in devices_of(listed, offered).items()
            if key not in claimed
        }
        remembered = [device for device in every if device.no_longer_offered_since is not None]
        assert not any(device.allocatable or device.holders for device in remembered)


def _pod_of(event: bytes) -> tuple[int, tuple[str, str, str]]:
    """The type of a WatchPods event, and its pod's namespace, name and uid."""
    message = pods_pb2.WatchPodsEvent.FromString(event)
    metadata = pod_pb2.Pod.FromString(message.pod).metadata
    return message.type, (metadata.namespace, metadata.name, metadata.uid)


def test_no_answer_ends_or_deceives_what_reads_it() -> None:
    order = random.Random(SEED)
    made = Answers(order)
    lists, offers = recordings.recorded("list"), recordings.recorded("allocatable")
    exporter = _Exporter()
    seen: Counter[str] = Counter()
    listed, offered = b"", b""
    slowest = 0.0
    for number in range(COUNT):
        if not number % _LIFE:
            exporter = _Exporter()
        chance = order.random()
        if chance < 0.35:
            listed = made.listing().SerializeToString()
        elif chance < 0.37 and lists:
            listed = order.choice(lists)
        elif chance < 0.9:
            # Of the one before as often as of another: what changed a little is where a memory goes wrong.
            base = listed if order.random() < 0.6 else made.listing().SerializeToString()
            listed = mutation.mutated(base[: 1 << 13], [made.listing().SerializeToString(), *lists], order)
        chance = order.random()
        if chance < 0.3:
            offered = made.allocatable().SerializeToString()
        elif chance < 0.31 and offers:
            offered = order.choice(offers)
        elif chance < 0.45:
            offered = mutation.mutated(offered[: 1 << 13], [made.allocatable().SerializeToString()], order)
        asked = order.random() < 0.8
        served = offered if asked and order.random() < 0.95 else None
        began = time.thread_time()
        try:
            seen[exporter.read(listed, served, asked=asked)] += 1
        except Exception as error:
            error.add_note(f"message {number} of seed {SEED}: {listed!r}, {served!r}, asked={asked}")
            raise
        slowest = max(slowest, time.thread_time() - began)
        assert slowest < LIMIT, f"message {number} of seed {SEED} took {slowest:.1f} s"
    print(f"{COUNT} answers: {dict(seen)}; slowest {slowest * 1e3:.1f} ms")
    # Both what is read and what is refused must have been there.
    assert seen["read"] > COUNT // 4
    assert seen["undecodable"] > COUNT // 20


def test_no_event_of_pods_ends_or_deceives_what_reads_it() -> None:
    order = random.Random(SEED)
    events = recordings.watch_messages()
    source = PodsApi(KubeletPaths(Path("/nowhere")), LabelFilter(compiled(".*")), timeout=1.0)
    register = PodRegistry()
    seen: Counter[str] = Counter()
    for number in range(COUNT):
        data = order.choice(events) if events and order.random() < 0.2 else mutation.event(order)
        if order.random() < 0.7:
            data = mutation.mutated(data, [mutation.event(order), *events], order)
        now = float(number)
        began = time.thread_time()
        told = source._event(data)  # pyright: ignore[reportPrivateUsage]
        seen[type(told).__name__] += 1
        match told:
            case PodSeen(identity=identity):
                kind, pod = _pod_of(data)
                assert kind in {pods_pb2.ADDED, pods_pb2.MODIFIED}
                assert (identity.namespace, identity.pod, identity.uid) == pod
                register.see(identity, now)
            case PodGone(key=key, uid=uid):
                assert _pod_of(data)[1] == (*key, uid)
                register.end(key, uid, now)
            case _:
                assert told is None or isinstance(told, UnreadableEvent)
        if not number % 50:
            register.confirm(now)
            assert all(
                sighting.identity.key == key
                for key, found in register.view.records.items()
                for sighting in found
            )
        assert time.thread_time() - began < LIMIT
    print(f"{COUNT} events: {dict(seen)}")
    assert seen["PodSeen"] > COUNT // 10
    assert seen["UnreadableEvent"] > COUNT // 50
