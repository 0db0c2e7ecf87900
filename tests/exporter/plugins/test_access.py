"""exporter.plugins: plugins that want TLS, a password, a certificate."""

from pathlib import Path

import pytest

from exporter.plugins.client import PluginAccess, PluginClient, PluginError
from harness.certificates import Certificates, hashed
from harness.web_clients import Served, serving
from runtime.flags import parse_address

USERS = f"basic_auth_users: {{exporter: {hashed('swordfish')}}}"
REQUIRED = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "web")


def client(served: Served, access: PluginAccess, scheme: str = "https", login: str = "") -> PluginClient:
    return PluginClient(parse_address(f"{scheme}://{login}127.0.0.1:{served.port}"), access)


async def problem(asked: PluginClient) -> str:
    with pytest.raises(PluginError) as caught:
        await asked.fetch()
    return str(caught.value)


async def test_plugin_with_tls_and_a_password_is_fetched(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "login"
    password.write_text("exporter:swordfish\n")
    trust = PluginAccess(ca_file=made.path("ca.crt"))
    async with serving(made.configuration(USERS)) as served:
        told = await client(served, PluginAccess(made.path("ca.crt"), password_file=password)).fetch()
        assert told is not None
        assert list(told.resources) == ["r"]
        by_url = client(served, trust, login="exporter:swordfish@")
        assert await by_url.fetch() is not None
        assert "swordfish" not in by_url.source
        assert await problem(client(served, trust)) == (
            "/api/v1/devices: 401 Unauthorized: it requires a name and a password (--plugin.password-file)"
        )
        assert await problem(client(served, trust, login="exporter:wrong@")) == (
            "/api/v1/devices: 401 Unauthorized: it refuses this name and password (--plugin.password-file)"
        )
        assert (await problem(client(served, PluginAccess()))).startswith("its certificate is not trusted: ")
        assert await problem(client(served, PluginAccess(), "http")) == (
            "its answer is invalid: it closed the connection; does it speak TLS (https://)?"
        )
    assert "swordfish" not in "".join(record.getMessage() for record in caplog.records)


async def test_files_are_read_again_when_they_change(made: Certificates, tmp_path: Path) -> None:
    password = tmp_path / "login"
    password.write_text("exporter:wrong")
    mine = tmp_path / "mine.pem"
    mine.write_bytes(Certificates(tmp_path / "other").client("exporter.example").read_bytes())
    access = PluginAccess(made.path("ca.crt"), mine, mine, password)
    async with serving(made.configuration(USERS, **REQUIRED)) as served:
        asked = client(served, access)
        await problem(asked)
        mine.write_bytes(made.client("exporter.example").read_bytes())
        assert "401 Unauthorized" in await problem(asked)
        password.write_text("exporter:swordfish")
        assert await asked.fetch() is not None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("login", None, "--plugin.password-file {login}: No such file or directory"),
        ("login", "swordfish", "--plugin.password-file {login}: expected one line USER:PASSWORD"),
        ("login", "a:b\nc:d", "--plugin.password-file {login}: expected one line USER:PASSWORD"),
        ("ca", None, "--plugin.ca-file {ca}: No such file or directory"),
        (
            "ca",
            "nothing",
            "--plugin.ca-file {ca}: found no certificate in it, expected PEM",
        ),
        ("key", None, "--plugin.cert-file {cert}: No such file or directory"),
    ],
)
async def test_unusable_file_is_reported_with_its_flag(
    name: str,
    content: str | None,
    message: str,
    made: Certificates,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = {
        "ca": made.path("ca.crt"),
        "cert": made.path("tls.crt"),
        "key": made.path("tls.key"),
        "login": made.path("login"),
    }
    files["login"].write_text("exporter:swordfish")
    async with serving(made.configuration(USERS)) as served:
        if content is None:
            files[name].unlink()
        else:
            files[name].write_text(content)
        access = PluginAccess(files["ca"], files["cert"], files["key"], files["login"])
        assert await problem(client(served, access)) == message.format_map(files)
    assert "swordfish" not in caplog.text


async def test_key_of_another_certificate_is_reported(made: Certificates, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    access = PluginAccess(None, made.path("tls.crt"), other.path("tls.key"))
    asked = PluginClient(parse_address("https://127.0.0.1:1"), access)
    assert await problem(asked) == (
        f"--plugin.cert-file {made.path('tls.crt')}: the key belongs to another certificate"
    )
