"""TLS contexts of the web configuration, tried in handshakes without a socket."""

import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness.certificates import Certificates, shake
from runtime.config_file import ConfigError
from runtime.http.web_config import load, read_files, read_named_files


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def server(made: Certificates, text: str = "", **keys: str) -> ssl.SSLContext:
    context = read_files(made.configuration(text, **keys)).tls_context()
    assert context is not None
    return context


def test_defaults_are_modern(made: Certificates) -> None:
    one, two = shake(made.context(), server(made))
    assert one.version() == "TLSv1.3"
    assert two.compression() is None
    names = {suite["name"] for suite in server(made).get_ciphers() if suite["protocol"] == "TLSv1.2"}
    assert names
    for name in names:
        assert name.startswith("ECDHE-"), name
        assert "GCM" in name or "CHACHA20" in name, name
    old = made.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        shake(old, server(made))


def test_versions_are_those_configured(made: Certificates) -> None:
    assert shake(made.context(), server(made, max_version="TLS12"))[0].version() == "TLSv1.2"
    only_old = made.context()
    only_old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(only_old, server(made, min_version="TLS13"))


def test_clients_are_verified_as_configured(made: Certificates, tmp_path: Path) -> None:
    ours, strangers = made.client("prometheus.example"), Certificates(tmp_path / "other").client("x.example")
    must = server(made, client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt")
    may = server(made, client_auth_type="VerifyClientCertIfGiven", client_ca_file="ca.crt")
    for offered in (must, may):
        _, two = shake(made.context(ours), offered)
        certificate: Any = two.getpeercert()
        assert ("DNS", "prometheus.example") in certificate["subjectAltName"]
        with pytest.raises(ssl.SSLError):
            shake(made.context(strangers), offered)
    with pytest.raises(ssl.SSLError):
        shake(made.context(), must)
    _, two = shake(made.context(), may)
    assert not two.getpeercert()


def test_a_verified_client_gets_no_ticket(made: Certificates) -> None:
    must = server(made, client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt")
    assert must.num_tickets == 0
    assert must.options & ssl.OP_NO_TICKET
    assert server(made).num_tickets


def test_pem_may_be_in_the_file_itself(made: Certificates) -> None:
    def inline(name: str) -> str:
        return "|\n    " + made.path(name).read_text().replace("\n", "\n    ")

    text = (
        f"tls_server_config:\n  cert: {inline('tls.crt')}\n  key: {inline('tls.key')}\n"
        f"  client_ca: {inline('ca.crt')}\n  client_auth_type: RequireAndVerifyClientCert\n"
    )
    offered = read_named_files(text.encode(), "web.yaml", Path("/nowhere")).tls_context()
    assert offered is not None
    shake(made.context(made.client("a.example")), offered)


def encrypted(key: bytes) -> bytes:
    return subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-passout", "pass:x"], input=key, capture_output=True, check=True
    ).stdout


@pytest.mark.parametrize(("file", "key"), [("tls.crt", "cert_file"), ("ca.crt", "client_ca_file")])
@pytest.mark.parametrize(
    "content", [b"", b"\0\xff", b"-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n"]
)
def test_certificates_that_cannot_be_used_are_refused(
    content: bytes, file: str, key: str, made: Certificates
) -> None:
    made.path(file).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        server(made, client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt")
    assert caught.value.path[-1] == key
    assert str(caught.value).isprintable()


def test_keys_that_cannot_be_used_are_refused(made: Certificates, capfd: pytest.CaptureFixture[str]) -> None:
    key = made.path("tls.key")
    good = key.read_bytes()
    for content, problem in (
        (b"", "found no private key, expected PEM with BEGIN PRIVATE KEY"),
        (made.path("tls.crt").read_bytes(), "found no private key, expected PEM with BEGIN PRIVATE KEY"),
        (encrypted(good), "found an encrypted key, expected one without a password"),
        (trustme.CA().issue_cert("localhost").private_key_pem.bytes(), "is not the key of the certificate"),
    ):
        key.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            server(made)
        assert (caught.value.path[-1], caught.value.problem) == ("key_file", f"{key} {problem}")
    key.write_bytes(good[: len(good) // 2])
    with pytest.raises(ConfigError):
        server(made)
    # OpenSSL prompts for no password.
    assert capfd.readouterr() == ("", "")


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "No such file or directory"),
    "pipe": (os.mkfifo, "it is no regular file"),
    "large": (lambda key: key.write_bytes(bytes(300 * 1024)), "it has more than 256 KiB"),
    "directory": (Path.mkdir, "Is a directory"),
}


@pytest.mark.parametrize(("make", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_path_that_cannot_be_read_is_refused(
    make: Callable[[Path], object], reason: str, made: Certificates
) -> None:
    key = made.path("tls.key")
    key.unlink()
    make(key)
    with pytest.raises(ConfigError) as caught:
        read_files(made.configuration())
    assert str(caught.value) == (
        f"{made.path('web.yaml')}:3: tls_server_config.key_file: {key} cannot be read: {reason}"
    )


def test_files_are_relative_to_the_configuration(made: Certificates) -> None:
    config = load(b"tls_server_config: {cert_file: a/b.crt, key_file: /c.key}", "web.yaml", Path("/etc/x"))
    assert config.pem == {"cert_file": Path("/etc/x/a/b.crt"), "key_file": Path("/c.key")}
