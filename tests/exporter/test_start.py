"""What both processes import at their start, and the authorities that they trust."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.certificates import Certificates

_CODE = """
import ssl, sys
made, create = [], ssl.create_default_context
def recorded(*arguments, **named):
    made.append(create(*arguments, **named))
    return made[-1]
ssl.create_default_context = recorded
import {process}.cli{module} as command
def run(main):
    from runtime.http.client import client_context
    loaded = {{name for name in sys.modules if name.startswith(tuple({heavy!r}))}}
    packages = ("exporter.", "kubelet.", "plugin.", "runtime.")
    modules = [module for name, module in sys.modules.items() if name.startswith(packages)]
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    dataclasses = {{one.__name__ for one in classes if hasattr(one, "__dataclass_fields__")}}
    authorities = [len(one.get_ca_certs()) for one in made]
    print(sorted(loaded), sorted(dataclasses), authorities, len(client_context(None).get_ca_certs()))
    return 0
command.run = run
command.{process}({arguments!r})
"""


def printed(process: str, module: str, heavy: list[str], arguments: list[str], authorities: Path) -> str:
    code = _CODE.format(process=process, module=module, heavy=heavy, arguments=arguments)
    environment = {**os.environ, "SSL_CERT_FILE": str(authorities), "SSL_CERT_DIR": os.devnull}
    command = (sys.executable, "-c", code)
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return ran.stdout


@pytest.fixture
def authorities(tmp_path: Path) -> Path:
    return Certificates(tmp_path).path("ca.crt")


def test_the_exporter_imports_nothing_that_only_a_flag_a_page_or_a_command_needs(authorities: Path) -> None:
    heavy = [
        *("yaml", "jinja2", "prometheus_client", "re2", "rich", "bcrypt", "difflib", "http.server"),
        *("exporter.pods.api_server", "exporter.apiserver.", "exporter.dra.", "exporter.mapping.id_rules"),
        *("exporter.web.api", "exporter.web.assets", "exporter.views.documents", "exporter.views.query"),
        *("exporter.web.pages", "runtime.http.web_config", "runtime.config_file", "plugin.", "simulator"),
    ]
    # A dataclass takes a millisecond to define, a Struct takes 20 µs. Flags need a dataclass's metadata.
    dataclasses = ["ExporterSettings", "ProcessSettings"]
    # aiohttp's own context trusts nobody, and those that the process makes trust the system's authorities.
    assert printed("exporter", ".exporter", heavy, [], authorities) == f"[] {dataclasses} [0] 1\n"


def test_the_plugin_imports_nothing_that_only_a_configuration_needs_and_reads_no_authorities(
    authorities: Path,
) -> None:
    arguments = ["--config", os.devnull]
    heavy = ["exporter.", "simulator", "jinja2", "tomllib", "re2", "rich", "bcrypt", "difflib", "http.server"]
    dataclasses = ["PluginSettings", "ProcessSettings"]
    assert printed("plugin", "", heavy, arguments, authorities) == f"[] {dataclasses} [0] 1\n"


def test_the_plugin_imports_jinja_only_for_a_template_that_does_more_than_insert_texts() -> None:
    plain = [
        *("cola", "fuse", "intel-gpu", "intel-sgx", "kvm", "rdma", "rdma-shared", "sample", "serial"),
        *("solarflare", "tun", "usb", "video"),
    ]
    code = (
        "import sys, plugin.main\n"
        "from plugin.config.load import load_all\n"
        "from plugin.presets import PRESETS\n"
        f"for name in {[*plain, 'nvidia']}:\n"
        "    assert load_all([(name, PRESETS[name].read_bytes())])\n"
        "    print(name, 'jinja2' in sys.modules)\n"
    )
    ran = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [*(f"{name} False" for name in plain), "nvidia True"]
