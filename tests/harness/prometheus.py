"""A real Prometheus on loopback for tests that ask it, and promtool."""

import asyncio
import json
import os
import socket
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from harness import owners
from harness.tools import required
from harness.waiting import until


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def promtool(*arguments: str | Path, text: str = "") -> tuple[int, str]:
    """The exit status and the output of promtool, which gets `text` on its standard input."""
    process = await asyncio.create_subprocess_exec(
        required("promtool", "prometheus"),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GOGC": "400"},  # a third of its time is the collection of garbage
    )
    out, _ = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode()


class Prometheus:
    """One process, its configuration and its data below a directory of the test's."""

    def __init__(self, directory: Path, configuration: str) -> None:
        """`configuration` is the text of prometheus.yml; paths in it are relative to `directory`."""
        self._program = required("prometheus", "prometheus")
        self._directory = directory
        (directory / "prometheus.yml").write_text(configuration)
        self._log = directory / "prometheus.log"
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://127.0.0.1:{free_port()}"

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._program,
                f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        async def ready() -> bool:
            assert self._process is not None
            assert self._process.returncode is None, self._log.read_text()[-2000:]
            status, _ = await owners.get(self.url, "/-/ready")
            return status == 200

        await until("Prometheus is ready", ready, limit=60)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        if kind is not None:
            print(self._log.read_text()[-4000:])

    async def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of the API. Fails with Prometheus' own words."""
        status, text = await owners.get(self.url, f"/api/v1/{path}?{_encoded(parameters)}")
        assert status == 200, f"{parameters}: {text}"
        return json.loads(text)["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """What a query gives now: metric and value of each series."""
        result: list[dict[str, Any]] = (await self.ask("query", query=expression))["result"]
        return result

    async def range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """What a query gives over time."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        result: list[dict[str, Any]] = (await self.ask("query_range", query=expression, **times))["result"]
        return result

    async def firing(self) -> dict[str, list[dict[str, Any]]]:
        """The alerts that fire, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in (await self.ask("alerts"))["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found


def _encoded(parameters: Mapping[str, str]) -> str:
    return urllib.parse.urlencode(
        {name.replace("match", "match[]"): text for name, text in parameters.items()}
    )
