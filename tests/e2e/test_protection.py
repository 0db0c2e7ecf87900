"""Both processes with --web.config.file: TLS, client certificates and passwords, as on a node."""

import asyncio
import json
import os
import signal
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from harness import owners
from harness.certificates import Certificates, hashed
from harness.node import Pod
from harness.nodes import running_node
from harness.processes import Process
from harness.prometheus import Prometheus
from harness.stack import Stack
from harness.waiting import until

USERS = f"basic_auth_users:\n  prometheus: {hashed('swordfish', 6)}\n  exporter: {hashed('shibboleth', 6)}\n"
REQUIRED = {
    "client_auth_type": "RequireAndVerifyClientCert",
    "client_ca_file": "ca.crt",
    "client_allowed_sans": "[prometheus.example, exporter.example]",
}


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "web")


@pytest.fixture
async def stack(made: Certificates) -> AsyncGenerator[Stack]:
    """Both processes protected; the exporter asks the plugin."""
    file = made.configuration(USERS, **REQUIRED)
    mine = made.client("exporter.example")
    login = made.path("login")
    login.write_text("exporter:shibboleth\n")
    flags = (
        *("--web.config.file", str(file), "--plugin.ca-file", str(made.path("ca.crt"))),
        *(
            "--plugin.cert-file",
            str(mine),
            "--plugin.key-file",
            str(mine),
            "--plugin.password-file",
            str(login),
        ),
    )
    async with running_node() as node:
        stack = Stack(node, *flags)
        arguments = list(stack.plugin.arguments)
        arguments[arguments.index("--web.listen-address") + 1] = "127.0.0.1:0"
        stack.plugin = Process(*arguments, "--web.config.file", str(file))
        async with stack.plugin:
            stack.exporter = Process(*stack.exporter.arguments, "--plugin.url", await stack.plugin.url())
            async with stack.exporter:
                stack.url = await stack.exporter.url()
                yield stack


class Asking:
    """A client with a certificate and, if there is one, a password."""

    def __init__(
        self, made: Certificates, name: str = "prometheus.example", login: str = "prometheus:swordfish"
    ) -> None:
        self._tls = made.context(made.client(name))
        self._login = login

    async def get(self, url: str) -> tuple[int, str]:
        headers = (
            {"Authorization": f"Basic {b64encode(self._login.encode()).decode()}"} if self._login else {}
        )
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls)) as session,
            session.get(url, headers=headers) as answer,
        ):
            return answer.status, await answer.text()


async def test_both_processes_ask_for_a_certificate_and_a_password(made: Certificates, stack: Stack) -> None:
    plugin = await stack.plugin.url()
    assert stack.url.startswith("https://")
    assert plugin.startswith("https://")
    stack.add_devices("apple", "cherry")
    await stack.capacity_is(2)
    asking = Asking(made)

    async def ready() -> bool:
        # A kubelet that has just come up is not believed at once.
        return (await asking.get(f"{stack.url}/-/ready"))[0] == 200

    await until("the mapping is there", ready, limit=stack.node.limit)
    for url in (stack.url, plugin):
        for path in ("/", "/metrics", "/-/healthy", "/api/v1/devices"):
            assert (await asking.get(url + path))[0] == 200, path
            assert (await Asking(made, login="").get(url + path))[0] == 401
            assert (await Asking(made, login="prometheus:shibboleth").get(url + path))[0] == 401
        with pytest.raises(aiohttp.ClientError):
            await Asking(made, "grafana.example").get(url + "/")
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(url, ssl=made.context()):
                pass

    async def plugin_told() -> bool:
        text = (await asking.get(f"{stack.url}/metrics"))[1]
        samples = owners.Samples(text)
        (found,) = samples.of("devicelens_plugin_url_up", url=plugin)
        assert found[1] == 1
        return len(samples.of("devicelens_device_info", resource=stack.resource)) == 2

    await until("the exporter knows what the plugin tells", plugin_told, limit=stack.node.limit)
    await stack.node.add_pod(Pod("eater", {"main": {stack.resource: 1}}))

    async def held() -> bool:
        text = (await asking.get(f"{stack.url}/metrics"))[1]
        return len(owners.Samples(text).of("devicelens_device_owner_info", resource=stack.resource)) == 1

    await until("the owner is told", held)


async def test_certificates_are_renewed_and_a_broken_file_changes_nothing(
    made: Certificates, stack: Stack
) -> None:
    asking = Asking(made)
    plugin = await stack.plugin.url()

    async def shown(url: str) -> str:
        host, port = url.removeprefix("https://").split(":")
        _, writer = await asyncio.open_connection(
            host, int(port), ssl=made.context(made.client("prometheus.example"))
        )
        pem = ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        return pem.replace("\n", "")

    renewed = made.renew().decode().replace("\n", "")
    for url in (stack.url, plugin):

        async def is_shown(url: str = url) -> bool:
            return await shown(url) in renewed

        await until(f"the renewed certificate at {url}", is_shown)
    made.configuration("basic_auth_users: {}", **REQUIRED)
    for process, prefix in ((stack.exporter, "devicelens_web"), (stack.plugin, "devicelens_plugin_web")):
        line = await process.line("web configuration refused, the last one stays in force")
        assert "found no users" in line
        url = await process.url()
        status, text = await asking.get(f"{url}/metrics")
        assert status == 200
        assert owners.Samples(text).of(f"{prefix}_config_last_reload_successful")[0][1] == 0
        assert (await Asking(made, login="").get(f"{url}/metrics"))[0] == 401
    made.configuration(USERS.replace("exporter:", "another:"), **REQUIRED)
    for process in (stack.exporter, stack.plugin):
        await process.line("web configuration refused, the last one stays in force: over")


async def test_sighup_does_not_end_a_process_that_is_protected(made: Certificates, stack: Stack) -> None:
    for process in (stack.exporter, stack.plugin):
        made.configuration(USERS + "# again\n", **REQUIRED)
        os.kill(process.pid, signal.SIGHUP)
        assert (await Asking(made).get(f"{await process.url()}/-/healthy"))[0] == 200
        assert process.status is None


@pytest.mark.parametrize("command", ["exporter", "plugin"])
async def test_a_broken_file_ends_a_process_at_its_start(command: str, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("tls_server_config: {cert_file: none.crt, key_file: none.key}\n")
    flags = ("--preset", "cola") if command == "plugin" else ()
    code, _, errors = await owners.devicelens(
        command, *flags, "--kubelet.root", str(tmp_path), "--web.config.file", str(file)
    )
    assert code == 1
    assert errors.splitlines()[-1] == (
        f"devicelens: --web.config.file: {file}:1: tls_server_config.cert_file: {tmp_path / 'none.crt'} "
        "cannot be read: No such file or directory"
    )


_CONFIGURATION = """\
global: {{scrape_interval: 2s, scrape_timeout: 2s}}
scrape_configs:
  - job_name: devicelens
    honor_labels: true
    scheme: https
    basic_auth: {{username: prometheus, password: swordfish}}
    tls_config: {{ca_file: {ca}, cert_file: {cert}, key_file: {cert}, server_name: localhost}}
    static_configs: [{{targets: {targets}}}]
"""


@pytest.mark.timeout(180)
async def test_a_real_prometheus_scrapes_both_while_certificates_are_renewed(
    made: Certificates, stack: Stack, tmp_path: Path
) -> None:
    targets = [url.removeprefix("https://") for url in (stack.url, await stack.plugin.url())]
    text = _CONFIGURATION.format(
        ca=made.path("ca.crt"), cert=made.client("prometheus.example"), targets=json.dumps(targets)
    )
    async with Prometheus(tmp_path, text) as prometheus:

        async def up() -> bool:
            return sorted(await _values(prometheus, 'up{job="devicelens"}')) == [1, 1]

        await until("Prometheus scrapes both", up, limit=60)
        for _ in range(3):
            made.renew()
            count = min(await _values(prometheus, 'count_over_time(up{job="devicelens"}[5m])'))

            async def further(count: float = count) -> bool:
                return (
                    min(await _values(prometheus, 'count_over_time(up{job="devicelens"}[5m])')) >= count + 2
                )

            await until("two more scrapes of each", further)
        # Not one of them failed since the first that succeeded.
        assert await _values(prometheus, 'changes(up{job="devicelens"}[5m])') == [0, 0]
        assert all(value == 0 for value in await _values(prometheus, "devicelens_web_requests_refused_total"))


async def _values(prometheus: Prometheus, query: str) -> list[float]:
    return [float(sample["value"][1]) for sample in await prometheus.query(query)]


async def test_the_end_does_not_wait_for_passwords_that_are_being_hashed(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(f"basic_auth_users: {{alice: {hashed('swordfish', 14)}}}\n")
    flags = ("--kubelet.root", str(tmp_path), "--web.listen-address", "127.0.0.1:0")
    async with Process("exporter", *flags, "--web.config.file", str(file)) as process:
        url = await process.url()

        async def ask(number: int) -> None:
            login = b64encode(f"alice:{number}".encode()).decode()
            with suppress(aiohttp.ClientError):
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(url, headers={"Authorization": f"Basic {login}"}) as answer,
                ):
                    assert answer.status in {401, 429}

        asking = [asyncio.create_task(ask(number)) for number in range(6)]

        async def some_are_refused() -> bool:
            return sum(task.done() for task in asking) >= 2

        await until("as many are hashed as may be", some_are_refused)
        assert await process.stop() == 0
        await asyncio.gather(*asking)
