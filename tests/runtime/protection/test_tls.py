"""runtime.protection.tls: contexts of certificates that were read, tried in handshakes without a socket."""

import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme

from harness.certificates import Certificates
from runtime.config_file import ConfigError
from runtime.protection.language import load
from runtime.protection.material import gather, gathered
from runtime.protection.suites import CURVES, TLS12
from runtime.protection.tls import PemError, context


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def server(made: Certificates, text: str = "", **keys: str) -> ssl.SSLContext:
    material = gather(made.configuration(text, **keys))
    assert material.config.tls is not None
    return context(material.config.tls, material.read)


def shake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Agree on TLS in memory; then one byte, for TLS 1.3's client certificates come last. Raises SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname="localhost")
    two = server.wrap_bio(there, back, server_side=True)
    waiting = [one, two]
    for _ in range(20):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert not waiting
    return one, two


def test_what_is_left_out_is_modern(made: Certificates) -> None:
    one, two = shake(made.context(), server(made))
    assert one.version() == "TLSv1.3"
    assert two.compression() is None
    names = {suite["name"] for suite in server(made).get_ciphers() if suite["protocol"] == "TLSv1.2"}
    assert names
    for name in names:
        assert name.startswith(("ECDHE-", "DHE-")), name
    old = made.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        shake(old, server(made))


def test_versions_are_those_asked_for(made: Certificates) -> None:
    assert shake(made.context(), server(made, max_version="TLS12"))[0].version() == "TLSv1.2"
    only_old = made.context()
    only_old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(only_old, server(made, min_version="TLS13"))


@pytest.mark.parametrize("name", TLS12)
def test_every_suite_is_the_one_that_go_calls_so(name: str, made: Certificates) -> None:
    """openssl knows the names of the standard, which are Go's but for the ending of two."""
    asked = subprocess.run(
        ["openssl", "ciphers", "-stdname", "-s", "-tls1_2", f"{TLS12[name]}:@SECLEVEL=0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert asked[0] == name
    chosen = server(made, cipher_suites=f"[{name}]").get_ciphers()
    assert [suite["name"] for suite in chosen if suite["protocol"] != "TLSv1.3"] == [TLS12[name]]


def test_the_order_of_suites_is_whose_it_should_be(made: Certificates) -> None:
    ours = "[TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]"
    theirs = made.context()
    theirs.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256")
    for prefer, name in (
        ("true", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("false", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ):
        offered = server(made, max_version="TLS12", cipher_suites=ours, prefer_server_cipher_suites=prefer)
        found = shake(theirs, offered)[0].cipher()
        assert found is not None
        assert found[0] == name


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_the_only_one(name: str, made: Certificates) -> None:
    offered = server(made, curve_preferences=f"[{name}]")
    same, other = made.context(), made.context()
    same.set_ecdh_curve(CURVES[name])
    other.set_ecdh_curve("secp384r1" if name != "CurveP384" else "prime256v1")
    shake(same, offered)
    with pytest.raises(ssl.SSLError):
        shake(other, offered)


def test_clients_are_verified_as_asked(made: Certificates, tmp_path: Path) -> None:
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


def test_who_is_verified_gets_no_ticket(made: Certificates) -> None:
    must = server(made, client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt")
    assert must.num_tickets == 0
    assert must.options & ssl.OP_NO_TICKET
    assert server(made).num_tickets


def test_pem_in_the_file_itself_does_as_well(made: Certificates) -> None:
    def inline(name: str) -> str:
        return "|\n    " + made.path(name).read_text().replace("\n", "\n    ")

    text = (
        f"tls_server_config:\n  cert: {inline('tls.crt')}\n  key: {inline('tls.key')}\n"
        f"  client_ca: {inline('ca.crt')}\n  client_auth_type: RequireAndVerifyClientCert\n"
    )
    material = gathered(text.encode(), "web.yaml", Path("/nowhere"))
    assert material.config.tls is not None
    shake(made.context(made.client("a.example")), context(material.config.tls, material.read))


def encrypted(key: bytes) -> bytes:
    return subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-passout", "pass:x"], input=key, capture_output=True, check=True
    ).stdout


@pytest.mark.parametrize(
    "certificate", [b"", b"\0\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_certificate_that_cannot_be_used_is_told(certificate: bytes, made: Certificates) -> None:
    made.path("tls.crt").write_bytes(certificate)
    with pytest.raises(PemError) as caught:
        server(made)
    assert caught.value.key == "cert_file"
    assert str(caught.value).isprintable()


def test_keys_that_cannot_be_used_are_told(made: Certificates, capfd: pytest.CaptureFixture[str]) -> None:
    key = made.path("tls.key")
    good = key.read_bytes()
    for content, problem in (
        (b"", "found no private key, expected PEM with BEGIN PRIVATE KEY"),
        (made.path("tls.crt").read_bytes(), "found no private key, expected PEM with BEGIN PRIVATE KEY"),
        (encrypted(good), "found an encrypted key, and there is nobody to ask for its password"),
        (trustme.CA().issue_cert("localhost").private_key_pem.bytes(), "is not the key of the certificate"),
    ):
        key.write_bytes(content)
        with pytest.raises(PemError) as caught:
            server(made)
        assert (caught.value.key, caught.value.problem) == ("key_file", problem)
    key.write_bytes(good[: len(good) // 2])
    with pytest.raises(PemError):
        server(made)
    # Nobody was asked for anything.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "content", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n"]
)
def test_authorities_that_cannot_be_used_are_told(content: bytes, made: Certificates) -> None:
    made.path("ca.crt").write_bytes(content)
    with pytest.raises(PemError) as caught:
        server(made, client_auth_type="RequireAndVerifyClientCert", client_ca_file="ca.crt")
    assert caught.value.key == "client_ca_file"


def _refusal(made: Certificates) -> str:
    with pytest.raises(ConfigError) as caught:
        gather(made.configuration())
    text = str(caught.value)
    start = f"{made.path('web.yaml')}:3: tls_server_config.key_file: {made.path('tls.key')} cannot be read: "
    assert text.startswith(start)
    return text.removeprefix(start)


def test_what_is_no_regular_file_is_not_waited_for(made: Certificates) -> None:
    key = made.path("tls.key")
    key.unlink()
    assert _refusal(made) == "No such file or directory"
    os.mkfifo(key)
    assert _refusal(made) == "it is no regular file"
    key.unlink()
    key.write_bytes(b"x" * (300 * 1024))
    assert _refusal(made) == "it has more than 256 KiB"
    key.unlink()
    key.mkdir()
    assert _refusal(made) == "Is a directory"


def test_files_are_relative_to_the_configuration(made: Certificates) -> None:
    config = load(b"tls_server_config: {cert_file: a/b.crt, key_file: /c.key}", "web.yaml", Path("/etc/x"))
    assert config.tls is not None
    assert (config.tls.cert.path, config.tls.key.path) == (Path("/etc/x/a/b.crt"), Path("/c.key"))
