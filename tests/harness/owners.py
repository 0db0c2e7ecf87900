"""Who holds what, read from each place that tells it: metrics, the API, the page, the command line."""

import asyncio
import functools
import json
import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from devicelens import main
from harness.node import Holding

CLEAN = {
    name: value
    for name, value in os.environ.items()
    # A terminal's size is its own.
    if not name.startswith("DEVICELENS_") and name not in {"COLUMNS", "LINES"}
}
"""The environment of commands that tests run."""


@asynccontextmanager
async def _session(url: str) -> AsyncGenerator[tuple[aiohttp.ClientSession, str]]:
    """A session for an address as the log tells it, and the address's base for requests."""
    if url.startswith("unix:"):
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(url.removeprefix("unix:"))
        base = "http://devicelens"
    else:
        connector, base = aiohttp.TCPConnector(), url
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session, base


async def get(url: str, path: str, *, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and text of one GET. Fails an assertion where nobody answers."""
    try:
        async with _session(url) as (session, base), session.get(base + path, headers=headers) as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientError as error:
        raise AssertionError(f"GET {path} from {url}: {error}") from error


async def get_json(url: str, path: str) -> Any:
    """The JSON document of a 200."""
    status, text = await get(url, path)
    assert status == 200, f"{path}: {status} {text}"
    return json.loads(text)


class Samples:
    """One scrape: values by family and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def of(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample called `name` that has all `labels`."""
        return [
            (dict(sample.labels), sample.value)
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the one sample that matches, None if there is none."""
        found = self.of(name, **labels)
        assert len(found) <= 1, f"{name}{labels} is not one series: {found}"
        return found[0][1] if found else None


async def scrape(url: str) -> Samples:
    """One scrape, as text."""
    status, text = await get(url, "/metrics")
    assert status == 200, text
    return Samples(text)


async def from_metrics(url: str, resource: str) -> frozenset[Holding]:
    """The owners of a resource's devices by devicelens_device_owner_info."""
    return frozenset(
        Holding(resource, labels["device"], labels["pod"], labels["container"])
        for labels, value in (await scrape(url)).of("devicelens_device_owner_info", resource=resource)
        if value == 1
    )


def _of_document(document: Any, resource: str) -> frozenset[Holding]:
    return frozenset(
        Holding(resource, device["device"], holder["pod"], holder["container"])
        for device in document["devices"]
        if device["resource"] == resource
        for holder in device["holders"]
    )


async def from_api(url: str, resource: str) -> frozenset[Holding]:
    """The owners by /api/v1/devices."""
    return _of_document(await get_json(url, "/api/v1/devices"), resource)


async def devicelens(*arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: status, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "devicelens", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=CLEAN,
    )
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@functools.cache
def _worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _invoke(arguments: Sequence[str]) -> tuple[int, str, str]:
    cleared = {name: None for name in os.environ if name not in CLEAN}
    result = CliRunner(env=cleared).invoke(main, arguments)
    return result.exit_code, result.stdout, result.stderr


async def devicelens_again(*arguments: str) -> tuple[int, str, str]:
    """The same from a process that runs one command after another: a start takes longer than a command."""
    return await asyncio.get_running_loop().run_in_executor(_worker(), _invoke, arguments)


async def from_who(resource: str, *where: str) -> frozenset[Holding]:
    """The owners by `devicelens who`, asked at `where` (--url … or --socket …)."""
    status, out, errors = await devicelens_again("who", resource, *where, "-o", "json")
    assert status in {0, 3}, errors
    return _of_document(json.loads(out), resource) if status == 0 else frozenset()
