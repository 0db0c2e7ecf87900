"""docs/web-configuration.md says what the code does."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from devicelens import main
from exporter.cli.exporter import exporter
from exporter.web.events import LIMIT as PAGES
from harness.certificates import Certificates
from runtime.http import (
    CONTENT_SECURITY_POLICY,
    KEEP_ALIVE,
    LARGE_AT_ONCE,
    SEND_WITHIN,
    Traffic,
    WebFamilies,
)
from runtime.http.connection import FIELD_BYTES, FIELDS, HEAD_BYTES, HEAD_WITHIN, LINE_BYTES
from runtime.http.crowd import MOST
from runtime.http.listener import HANDSHAKE_WITHIN
from runtime.http.traffic import ENDED, REFUSED
from runtime.protection.language import MAX_COST, load
from runtime.protection.passwords import EACH, LIMIT
from runtime.protection.reload import READ_INTERVAL, SETTLE

TEXT = (Path(__file__).parents[2] / "docs" / "web-configuration.md").read_text()
YAML: list[str] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
CONSOLE = re.findall(r"```console\n\$ (devicelens check [^\n]*)\n(.*?)```", TEXT, re.DOTALL)


def test_its_configuration_is_accepted() -> None:
    (text,) = [block for block in YAML if block.startswith("tls_server_config")]
    assert load(text.encode(), "web.yaml", Path()).words() == "TLS, 1 user"


def test_its_other_examples_are_yaml() -> None:
    for block in YAML:
        assert isinstance(yaml.safe_load(block), dict)


@pytest.mark.parametrize(("command", "output"), CONSOLE)
def test_its_commands_answer_as_shown(
    command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Certificates(tmp_path)
    users = next(block for block in YAML if "basic_auth_users" in block).split("server.key\n")[-1]
    made.configuration(users[users.index("basic_auth_users") :])
    made.path("bad.yaml").write_text("tls_server_config:\n  cert_fil: tls.crt\n")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, shlex.split(command)[1:]).output == output


def test_there_are_commands_to_try() -> None:
    assert len(CONSOLE) == 2


def test_numbers_are_those_of_the_code() -> None:
    for said in (
        f"| connections | {MOST}, at most half",
        f"| TLS agreed within | {HANDSHAKE_WITHIN:g} s |",
        f"| a request's head | {HEAD_WITHIN:g} s from its first byte",
        f"| {LINE_BYTES} B, {FIELD_BYTES} B, {HEAD_BYTES >> 10} KiB, {FIELDS} |",
        f"| an idle connection | {KEEP_ALIVE:g} s |",
        f"| {SEND_WITHIN:g} s, {LARGE_AT_ONCE} answers of more than 64 KiB",
        f"| pages that follow live | {PAGES} |",
        f"of cost 4 to {MAX_COST}",
        f"At most\n{LIMIT} passwords wait to be checked, {EACH} of them from one address",
        f"and every {READ_INTERVAL:g} s",
        f"Two reads {SETTLE:g} s apart",
        f"`{CONTENT_SECURITY_POLICY}`",
    ):
        assert said in TEXT, said


def test_families_reasons_and_flags_are_those_of_the_code() -> None:
    for family in WebFamilies("devicelens", Traffic()).collect():
        assert f"`{family.name}" in TEXT
    for reason in (*ENDED, *REFUSED):
        assert f"`{reason}`" in TEXT
    known = {flag for option in exporter.params for flag in option.opts}
    assert set(re.findall(r"`(--(?:plugin|web)\.[a-z.-]+)", TEXT)) <= known


def test_its_headings_are_where_its_links_point() -> None:
    anchors = {
        re.sub(r"[^a-z ]", "", line.lower()).replace(" ", "-")
        for line in re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\(#([a-z-]+)\)", TEXT)) <= anchors
