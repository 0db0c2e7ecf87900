"""The components tls and passwords with real processes: the exporter reaches the plugin, probes succeed."""

import base64
from pathlib import Path

import aiohttp
import pytest
import yaml

from harness.certificates import Certificates, hashed
from harness.manifests import DEPLOY, container, environment, pod_of
from harness.owners import devicelens
from harness.processes import Process
from harness.waiting import until
from simulator import SimulatedKubelet

USER, PASSWORD = "prometheus", "secret"
LOGIN = f"{USER}:{PASSWORD}"


@pytest.fixture
def made(root: Path) -> Certificates:
    """Secrets as docs/install.md has them made, below `root`."""
    found = Certificates(root / "tls", names=("devicelens", "127.0.0.1"))
    (root / "web").mkdir()
    (root / "web/login").write_text(LOGIN + "\n")
    return found


def configured(root: Path, *, passwords: bool) -> None:
    """web.yaml, as the component has it, with users where there are passwords."""
    text = (DEPLOY / "components/tls/web.yaml").read_text().replace("/etc/devicelens-tls", str(root / "tls"))
    users = {"basic_auth_users": {USER: hashed(PASSWORD)}} if passwords else {}
    (root / "web/web.yaml").write_text(yaml.safe_dump(yaml.safe_load(text) | users))


def variables(combination: str, name: str, root: Path) -> dict[str, str]:
    return {
        variable: value.replace("/etc/devicelens-", f"{root}/")
        for variable, value in environment(container(pod_of(combination), name)).items()
    }


@pytest.mark.parametrize("combination", ["tls", "tls-and-passwords"])
async def test_both_processes_serve_https_and_reach_each_other(
    combination: str, root: Path, made: Certificates
) -> None:
    passwords = combination != "tls"
    configured(root, passwords=passwords)
    common = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0")
    preset = Process(
        "plugin", "--preset", "cola", *common, environment=variables(combination, "plugin", root)
    )
    async with SimulatedKubelet(root), aiohttp.ClientSession() as session, preset as plugin:
        reported = await plugin.url()
        given = variables(combination, "exporter", root)
        assert given["DEVICELENS_PLUGIN_URL"].startswith("https://127.0.0.1:")
        given["DEVICELENS_PLUGIN_URL"] = reported
        async with Process("exporter", *common, environment=given) as exporter:
            page = await exporter.url()
            assert page.startswith("https://")
            login = ("--login-file", str(root / "web/login")) if passwords else ()
            credentials = f"Basic {base64.b64encode(LOGIN.encode()).decode()}" if passwords else ""

            async def reached() -> bool:
                async with session.get(
                    f"{page}/metrics",
                    ssl=made.context(),
                    headers={"Authorization": credentials},
                    server_hostname="devicelens",
                ) as answer:
                    assert answer.status == 200
                    return f'devicelens_plugin_url_up{{url="{reported}"}} 1.0' in await answer.text()

            await until("the plugin reached by the exporter", reached)
            for url in (page, reported):
                # Here no process is number 1, so that the probes' command gets the address.
                probe = ("healthy", "--tls", "--web.listen-address", url.partition("//")[2])
                assert await devicelens(*probe) == (0, "healthy\n", "")

                async def ready(probe: tuple[str, ...] = probe) -> bool:
                    return await devicelens(*probe, "--ready", *login) == (0, "ready\n", "")

                await until("ready", ready)
                if passwords:
                    assert (await devicelens(*probe, "--ready"))[0] == 1
