"""Whoever watches must see what is wrong: an exporter that lies, forgets, or does not answer."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from harness.counted import LEAK
from harness.trials import ground
from harness.trials.census import ONCE, Counted, census, files
from harness.trials.observer import FRESH, Observer
from harness.truth import Owner, Span, Truth
from harness.waiting import until

STALE_AFTER = 14.0
OWNER = Owner("a/gpu", "gpu-0", "default", "steady", "main")
OTHER = OWNER._replace(pod="other")


class Liar:
    """An exporter that tells what it is told to tell."""

    def __init__(self) -> None:
        self.owners: list[Owner] = [OWNER]
        self.age: float | None = 0.1
        self.without_label = ""
        self.counted = 5
        self.status = 200
        self.up = 0

    async def metrics(self, _request: web.Request) -> web.Response:
        lines = [f"devicelens_up {self.up}"]
        lines += [f'devicelens_allocations_total{{resource="a/gpu"}} {self.counted}']
        if self.age is not None:
            lines.append(f"devicelens_last_refresh_success_timestamp_seconds {time.time() - self.age}")
        for owner in self.owners:
            labels = dict(zip(("resource", "device", "namespace", "pod", "container"), owner, strict=False))
            labels |= {"node": "n", "parent": "", "pod_uid": owner.uid}
            if self.without_label:
                labels[self.without_label] = ""
            shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
            lines.append(f"devicelens_device_owner_info{{{shown}}} 1")
        return web.Response(text="\n".join(lines) + "\n", status=self.status)

    async def devices(self, _request: web.Request) -> web.Response:
        taken = None if self.age is None else datetime.fromtimestamp(time.time() - self.age, UTC).isoformat()
        devices = [
            {
                "resource": owner.resource,
                "device": owner.device,
                "holders": [
                    {
                        "namespace": owner.namespace,
                        "pod": owner.pod,
                        "container": owner.container,
                        "pod_uid": owner.uid,
                    }
                ],
            }
            for owner in self.owners
        ]
        document = {"taken_at": taken, "devices": devices}
        return web.Response(text=json.dumps(document), status=self.status)


@pytest.fixture
def liar() -> Liar:
    return Liar()


@pytest.fixture
async def observer(liar: Liar) -> AsyncGenerator[Observer]:
    application = web.Application()
    application.add_routes([web.get("/metrics", liar.metrics), web.get("/api/v1/devices", liar.devices)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    truth = Truth(present=frozenset({OWNER}))
    truth.spans[OWNER].append(Span(time.time() - 100))
    made = Observer(truth, lambda: f"http://{host}:{port}", STALE_AFTER)
    async with made.watching():
        await _looks(made)
        assert made.problems == []
        yield made
    await runner.cleanup()


async def _looks(observer: Observer, times: int = 3) -> None:
    seen = observer.seen
    before = seen.scrapes + seen.documents + seen.unanswered

    async def more() -> bool:
        return seen.scrapes + seen.documents + seen.unanswered >= before + 2 * times

    await until("it has looked", more)


@pytest.mark.parametrize(
    ("lie", "seen"),
    [
        ({"owners": [OWNER, OTHER]}, "wrong"),
        ({"owners": []}, "missing"),
        ({"owners": [], "age": None}, "missing"),
        ({"age": STALE_AFTER + 1}, "wrong"),
        ({"age": FRESH + 1, "up": 1}, "wrong"),
        *(
            ({"without_label": label}, "unlabelled")
            for label in ("node", "namespace", "pod", "container", "device", "resource")
        ),
        ({"counted": 4}, "fallen"),
        ({"status": 500}, "unanswered"),
    ],
    ids=str,
)
async def test_a_lie_is_seen(liar: Liar, observer: Observer, lie: dict[str, Any], seen: str) -> None:
    for name, value in lie.items():
        setattr(liar, name, value)
    await _looks(observer)
    assert getattr(observer.seen, seen) > 0


async def test_one_that_was_an_owner_before_the_mapping_was_taken_is_wrong(
    liar: Liar, observer: Observer
) -> None:
    observer.truth.spans[OTHER].append(Span(time.time() - 50, time.time() - 5))
    liar.owners, liar.age = [OWNER, OTHER], 6.0
    await _looks(observer)
    assert observer.seen.wrong == 0
    liar.age = 1.0
    await _looks(observer)
    assert observer.seen.wrong > 0


async def test_one_of_the_same_name_is_not_the_owner(liar: Liar, observer: Observer) -> None:
    observer.truth.spans[OWNER._replace(uid="first")] = observer.truth.spans.pop(OWNER)
    observer.truth.present = frozenset({OWNER._replace(uid="first")})
    liar.owners = [OWNER._replace(uid="first")]
    await _looks(observer)
    assert observer.seen.wrong == 0
    liar.owners = [OWNER._replace(uid="second")]
    await _looks(observer)
    assert observer.seen.wrong > 0


async def test_a_predecessors_uid_is_late_for_a_moment_and_then_wrong(liar: Liar, observer: Observer) -> None:
    first, second = OWNER._replace(uid="first"), OWNER._replace(uid="second")
    spans = observer.truth.spans
    del spans[OWNER]
    observer.truth.present = frozenset({second})
    liar.owners = [first]
    now = time.time()
    spans[first].append(Span(now - 100, now - 0.5))
    spans[second].append(Span(now - 0.5))
    liar.age = 0.0
    await _looks(observer, 1)
    assert observer.seen.late > 0
    assert observer.seen.wrong == 0
    spans[first][-1].end = spans[second][-1].begin = now - 5
    await _looks(observer)
    assert observer.seen.wrong > 0


@pytest.fixture
def directory(root: Path) -> Path:
    ground.prepare(root)
    (root / "k" / "device-plugins").mkdir(parents=True)
    return root


@pytest.mark.parametrize("make", [ground.exporter, ground.plugin])
async def test_what_a_process_leaks_is_seen(
    directory: Path, make: Callable[[Path, ground.Around], Counted]
) -> None:
    """By the widest of what is granted."""
    async with make(directory, ground.Around()) as process:
        await process.line("listening")
        before = await census(process)
        os.kill(process.pid, signal.SIGUSR1)

        async def seen() -> bool:
            beyond = (await census(process)).beyond(before, ONCE)
            for words in ("descriptors", "threads", f"{LEAK} Event.wait", "memory"):
                assert words in beyond, (words, beyond)
            return True

        await until("what it has leaked is seen", seen)


def test_files_that_are_left_are_seen(directory: Path) -> None:
    plugins = directory / "k" / "device-plugins"
    (plugins / "devicelens-a.test_gpu-0a1b2c-00000001.sock").touch()
    before = files(directory)
    # Another incarnation's in the place of the first is nothing new; a second one beside it is.
    (plugins / "devicelens-a.test_gpu-0a1b2c-00000001.sock").rename(
        plugins / "devicelens-a.test_gpu-0a1b2c-00000002.sock"
    )
    assert files(directory) - before == Counter()
    (plugins / "devicelens-a.test_gpu-0a1b2c-00000003.sock").touch()
    (directory / "left").touch()
    assert files(directory) - before == Counter(
        {"left": 1, "k/device-plugins/devicelens-a.test_gpu-0a1b2c-*.sock": 1}
    )
