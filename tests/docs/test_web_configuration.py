"""docs/web-configuration.md says what the code does."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from devicelens import main
from exporter.cli.exporter import exporter
from exporter.web.events import LIMIT as PAGES
from exporter.web.events import LIMIT_PER_ADDRESS as PAGES_PER_ADDRESS
from harness.certificates import Certificates
from runtime.http.access import MAX_CHECKS, MAX_CHECKS_PER_CLIENT
from runtime.http.app import SEND_WITHIN
from runtime.http.bodies import BUDGET
from runtime.http.connection import (
    ENDED,
    FIELDS,
    HANDSHAKE_WITHIN,
    HEAD_BYTES,
    HEAD_WITHIN,
    KEEP_ALIVE,
    MAX_CONNECTIONS,
    MAX_PER_ADDRESS,
    REFUSED,
    Traffic,
    WebFamilies,
)
from runtime.http.web_config import HEADERS, KEYS, MAX_COST, READ_INTERVAL, TlsServerConfig, load

TEXT = (Path(__file__).parents[2] / "docs" / "web-configuration.md").read_text()
YAML: list[str] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
CONSOLE = re.findall(r"```console\n\$ (devicelens check [^\n]*)\n(.*?)```", TEXT, re.DOTALL)


def test_its_configuration_is_accepted() -> None:
    (text,) = [block for block in YAML if block.startswith("tls_server_config")]
    assert load(text.encode(), "web.yaml", Path()).words() == "TLS, 1 user"


def test_every_key_is_named() -> None:
    for key in (*KEYS, *TlsServerConfig.__struct_fields__, *HEADERS):
        assert re.search(rf"[`.]{re.escape(key)}[`.]", TEXT), key


@pytest.mark.parametrize(("command", "output"), CONSOLE)
def test_its_commands_answer_as_shown(
    command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Certificates(tmp_path)
    (users,) = YAML
    made.configuration(users[users.index("basic_auth_users") :])
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, shlex.split(command)[1:]).output == output


def test_numbers_are_those_of_the_code() -> None:
    assert HANDSHAKE_WITHIN == HEAD_WITHIN
    for said in (
        f"| connections | {MAX_CONNECTIONS}, {MAX_PER_ADDRESS} of one address, half of the descriptors |",
        f"| TLS handshake, a request's head | {HEAD_WITHIN:g} s each |",
        f"| {HEAD_BYTES >> 10} KiB, {FIELDS} fields |",
        f"| connection without a request | {KEEP_ALIVE:g} s |",
        f"| time to read an answer | {SEND_WITHIN:g} s |",
        f"| large answers being sent | {BUDGET >> 20} MiB |",
        f"| pages that follow live | {PAGES}, {PAGES_PER_ADDRESS} of one address |",
        f"| passwords being verified | {MAX_CHECKS}, {MAX_CHECKS_PER_CLIENT} of one address |",
        f"of cost 4 to {MAX_COST}",
        f"and every {READ_INTERVAL:g} s",
    ):
        assert said in TEXT, said


def test_families_reasons_and_flags_are_those_of_the_code() -> None:
    for family in WebFamilies("devicelens", Traffic()).families():
        assert f"`{family.name}" in TEXT
    for reason in (*ENDED, *REFUSED):
        assert f"`{reason}`" in TEXT
    known = {flag for option in exporter.params for flag in option.opts}
    assert set(re.findall(r"`(--(?:plugin|web)\.[a-z.-]+)", TEXT)) <= known
