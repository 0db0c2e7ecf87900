"""The components tls and passwords with real processes: the exporter reaches the plugin, probes succeed."""

import asyncio
import base64
import ssl
import subprocess
import sys
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import trustme
import yaml

from harness.manifests import DEPLOY, container, environment, pod_of
from harness.processes import Process
from harness.waiting import until
from simulator import SimulatedKubelet

LOGIN = "prometheus:secret"


@pytest.fixture
def authority(root: Path) -> trustme.CA:
    """Secrets as docs/install.md has them made, below `root`."""
    found = trustme.CA()
    pair = found.issue_cert("devicelens", "127.0.0.1")
    (root / "tls").mkdir()
    (root / "web").mkdir()
    found.cert_pem.write_to_path(root / "tls/ca.crt")
    pair.cert_chain_pems[0].write_to_path(root / "tls/tls.crt")
    pair.private_key_pem.write_to_path(root / "tls/tls.key")
    (root / "web/login").write_text(LOGIN + "\n")
    return found


def configured(root: Path, *, passwords: bool) -> None:
    """web.yaml, as the component has it, with users where there are passwords."""
    text = (DEPLOY / "components/tls/web.yaml").read_text().replace("/etc/devicelens-tls", str(root / "tls"))
    document = yaml.safe_load(text)
    if passwords:
        user, _, password = LOGIN.partition(":")
        document["basic_auth_users"] = {user: bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}
    (root / "web/web.yaml").write_text(yaml.safe_dump(document))


def variables(combination: str, name: str, root: Path) -> dict[str, str]:
    return {
        variable: value.replace("/etc/devicelens-", f"{root}/")
        for variable, value in environment(container(pod_of(combination), name)).items()
    }


async def healthy(url: str, *flags: str) -> tuple[int, str]:
    """What the probes' command says. Here no process is number 1, so it is told where to ask."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "devicelens", "healthy", "--tls"),
        *("--web.listen-address", url.partition("//")[2], *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=DEPLOY.parent,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode().strip()


async def secured(process: Process) -> str:
    line = await process.line("listening")
    (url,) = (part.removeprefix("url=") for part in line.split() if part.startswith("url="))
    assert url.startswith("https://")
    return url


@pytest.mark.parametrize("combination", ["tls", "tls-and-passwords"])
async def test_both_processes_serve_https_and_reach_each_other(
    combination: str, root: Path, authority: trustme.CA
) -> None:
    passwords = combination != "tls"
    configured(root, passwords=passwords)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    common = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0")
    async with SimulatedKubelet(root), aiohttp.ClientSession() as session:
        plugin = Process(
            *("plugin", "--preset", "cola", *common), environment=variables(combination, "plugin", root)
        )
        async with plugin:
            told = await secured(plugin)
            given = variables(combination, "exporter", root)
            assert given["DEVICELENS_PLUGIN_URL"].startswith("https://127.0.0.1:")
            given["DEVICELENS_PLUGIN_URL"] = told
            async with Process("exporter", *common, environment=given) as exporter:
                page = await secured(exporter)
                credentials = {
                    "Authorization": f"Basic {base64.b64encode(LOGIN.encode()).decode()}" if passwords else ""
                }

                async def reached() -> bool:
                    async with session.get(
                        f"{page}/metrics", ssl=context, headers=credentials, server_hostname="devicelens"
                    ) as answer:
                        assert answer.status == 200
                        return f'devicelens_plugin_url_up{{url="{told}"}} 1.0' in await answer.text()

                await until("the plugin reached by the exporter", reached)
                for url in (page, told):
                    assert await healthy(url) == (0, "healthy")
                    login = ("--login-file", str(root / "web/login")) if passwords else ()

                    async def ready(url: str = url, login: tuple[str, ...] = login) -> bool:
                        return await healthy(url, "--ready", *login) == (0, "ready")

                    await until("ready", ready)
                    if passwords:
                        assert (await healthy(url, "--ready"))[0] == 1
