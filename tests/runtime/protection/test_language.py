"""runtime.protection.language: every key, what is refused, and where a message points."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.certificates import hashed
from runtime.config_file import ConfigError
from runtime.protection.language import HEADERS, KEYS, Clients, Rate, load
from runtime.protection.model import Document, TlsServerConfig
from runtime.protection.suites import CURVES, TLS12, TLS13
from runtime.text import is_hostile

DIRECTORY = Path("/etc/web")
HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
REFERENCE = Path(__file__).parents[3] / "docs" / "web-configuration.md"


def read(text: str) -> Any:
    return load(text.encode(), "web.yaml", DIRECTORY)


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def test_the_example_of_exporter_toolkit_is_accepted() -> None:
    config = read(
        TLS
        + f"""
basic_auth_users:
  alice: {HASH}
  bob: $2y$10$hLqFl9jSjoAAy95Z/zw8Ye8wkdMBM8c5Bn1ptYqP/AXyV0.oy0S8m

# Rate limiting requests on the endpoint using a token bucket
rate_limit:
  interval: "1s"
  burst: 20
"""
    )
    assert config.tls.cert.path == DIRECTORY / "server.crt"
    assert config.tls.key.path == DIRECTORY / "server.key"
    assert config.tls.clients is Clients.ANYBODY
    assert (config.tls.oldest, config.tls.newest) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert list(config.users) == ["alice", "bob"]
    assert config.rate == Rate(1.0, 20)


def test_every_key_of_exporter_toolkit_is_known_and_told_of() -> None:
    text = REFERENCE.read_text()
    for key in (*KEYS, *TlsServerConfig.__struct_fields__, *HEADERS):
        assert f"`{key}`" in text or f"`{key}." in text, key
    for name in (*CURVES, "TLS12", "TLS13"):
        assert f"`{name}`" in text
    assert set(KEYS) == set(Document.__struct_fields__)


def test_all_that_can_be_honoured_together() -> None:
    config = read(
        """
tls_server_config:
  cert: a certificate
  key: a key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: /ca.pem
  client_allowed_sans: [prometheus.example, 10.0.0.1]
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP384]
http_server_config:
  http2: false
  headers:
    Content-Security-Policy: default-src 'self'
    X-Frame-Options: sameorigin
    X-Content-Type-Options: nosniff
    X-XSS-Protection: ""
    Strict-Transport-Security: max-age=31536000
rate_limit: {interval: 100ms, burst: 1}
"""
    )
    tls = config.tls
    assert (tls.cert.path, tls.cert.text) == (None, b"a certificate")
    assert tls.client_ca.path == Path("/ca.pem")
    assert tls.allowed_sans == {"prometheus.example", "10.0.0.1"}
    assert tls.newest is ssl.TLSVersion.TLSv1_2
    assert tls.suites == ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305")
    assert not tls.server_decides
    assert tls.curve == "secp384r1"
    assert config.headers["X-XSS-Protection"] == ""
    assert config.words() == (
        "TLS, client certificates, a rate limit, headers: Content-Security-Policy, X-Frame-Options, "
        "X-Content-Type-Options, X-XSS-Protection, Strict-Transport-Security"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "web.yaml:1: found an empty file, expected a configuration"),
        ("# nothing\n", "web.yaml:1: found an empty file, expected a configuration"),
        ("null", "web.yaml:1: found an empty file, expected a web configuration"),
        ("[]", "web.yaml:1: found an empty list, expected a mapping"),
        (
            "tls_server: {}",
            "web.yaml:1: tls_server: found an unknown key 'tls_server', did you mean 'tls_server_config'?",
        ),
        ("tls_server_config:", "web.yaml:1: tls_server_config: found nothing, expected a mapping"),
        (
            "tls_server_config: {}",
            "web.yaml:1: tls_server_config: expected the key 'cert_file' (or 'cert'), which is missing",
        ),
        (
            "tls_server_config:\n  cert_file: a",
            "web.yaml:1: tls_server_config: expected the key 'key_file' (or 'key'), which is missing",
        ),
        (
            TLS + "  cert: inline",
            "web.yaml:4: tls_server_config.cert: found beside cert_file, expected one of them",
        ),
        (
            TLS + "  keyfile: x",
            "web.yaml:4: tls_server_config.keyfile: found an unknown key 'keyfile', did you mean 'key_file'?",
        ),
        (
            TLS + "  client_auth_type: RequireAndVerify",
            (
                "web.yaml:4: tls_server_config.client_auth_type: found 'RequireAndVerify', expected one of "
                "'NoClientCert', 'RequestClientCert', 'RequireAndVerifyClientCert', 'RequireAnyClientCert', "
                "'RequireClientCert', 'VerifyClientCertIfGiven', did you mean 'RequireAndVerifyClientCert'?"
            ),
        ),
        *(
            (
                TLS + f"  client_auth_type: {kind}",
                (
                    f"web.yaml:4: tls_server_config.client_auth_type: found {kind}, which "
                    f"believes any certificate that "
                    "a client shows: Python's ssl cannot do that; expected RequireAndVerifyClientCert, "
                    "VerifyClientCertIfGiven or NoClientCert"
                ),
            )
            for kind in ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
        ),
        (
            TLS + "  client_ca_file: ca",
            (
                "web.yaml:4: tls_server_config.client_ca_file: found without a "
                "client_auth_type that verifies clients, "
                "such as RequireAndVerifyClientCert"
            ),
        ),
        (
            TLS + "  client_auth_type: RequireAndVerifyClientCert",
            (
                "web.yaml:4: tls_server_config.client_auth_type: found RequireAndVerifyClientCert without "
                "client_ca_file: nothing says whom to trust"
            ),
        ),
        (
            TLS
            + "  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca\n  client_allowed_sans: [a]",
            (
                "web.yaml:6: tls_server_config.client_allowed_sans: found without client_auth_type: "
                "RequireAndVerifyClientCert: no certificate, no name"
            ),
        ),
        (
            TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca\n"
            "  client_allowed_sans: []",
            (
                "web.yaml:6: tls_server_config.client_allowed_sans: found an empty "
                "list, which no client could match"
            ),
        ),
        *(
            (
                TLS + f"  {key}: TLS11",
                (
                    f"web.yaml:4: tls_server_config.{key}: found TLS11, expected TLS12 or "
                    f"TLS13: what is older is not safe"
                ),
            )
            for key in ("min_version", "max_version")
        ),
        (
            TLS + "  min_version: TLS13\n  max_version: TLS12",
            "web.yaml:4: tls_server_config.min_version: found TLS13, expected at most max_version, TLS12",
        ),
        (
            TLS + "  cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]",
            (
                "web.yaml:4: tls_server_config.cipher_suites: found "
                "'TLS_RSA_WITH_AES_128_CBC_SHA', which Go and this "
                "program hold for insecure"
            ),
        ),
        (
            TLS + "  cipher_suites: [ECDHE_RSA_WITH_AES_128_GCM_SHA256]",
            (
                "web.yaml:4: tls_server_config.cipher_suites: found "
                "'ECDHE_RSA_WITH_AES_128_GCM_SHA256', which is no "
                "cipher suite known here, did you mean 'TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256'?"
            ),
        ),
        (
            TLS + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]",
            (
                "web.yaml:4: tls_server_config.cipher_suites: found "
                "'TLS_AES_128_GCM_SHA256': the suites of TLS 1.3 "
                "cannot be chosen one by one, all three are offered; name all of them or none"
            ),
        ),
        (
            TLS + "  curve_preferences: [CurveP256, X25519]",
            (
                "web.yaml:4: tls_server_config.curve_preferences: found 2 curves, "
                "expected one: Python's ssl takes no "
                "order of several; without the key OpenSSL offers X25519 and the others in its own order"
            ),
        ),
        (
            TLS + "  curve_preferences: [P256]",
            (
                "web.yaml:4: tls_server_config.curve_preferences: found 'P256', which "
                "is no curve known here, did you "
                "mean 'CurveP256'?"
            ),
        ),
        (
            "http_server_config:\n  http2: true",
            (
                "web.yaml:2: http_server_config.http2: HTTP/2 is not spoken here, "
                "only HTTP/1.1: leave it out or say false"
            ),
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Option: deny",
            (
                "web.yaml:3: http_server_config.headers.X-Frame-Option: the header "
                "'X-Frame-Option' cannot be set, did "
                "you mean 'X-Frame-Options'?"
            ),
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: allow}}",
            (
                "web.yaml:1: http_server_config.headers.X-Frame-Options: found "
                "'allow', expected deny or sameorigin"
            ),
        ),
        (
            'http_server_config: {headers: {Strict-Transport-Security: "a\\r\\nSet-Cookie: b"}}',
            (
                "web.yaml:1: http_server_config.headers.Strict-Transport-Security: "
                "found 'a\\r\\nSet-Cookie: b', expected one line of at most 4096 ASCII characters"
            ),
        ),
        (
            "basic_auth_users: {}",
            "web.yaml:1: basic_auth_users: found no users: leave the key out to ask nobody for a password",
        ),
        (
            "basic_auth_users:\n  alice:",
            "web.yaml:2: basic_auth_users.alice: found nothing, expected text",
        ),
        (
            'basic_auth_users:\n  alice: ""',
            (
                "web.yaml:2: basic_auth_users.alice: found nothing, expected a bcrypt "
                "hash ($2y$…, as htpasswd -nBC 10 "
                "makes it)"
            ),
        ),
        (
            "basic_auth_users:\n  alice: swordfish",
            (
                "web.yaml:2: basic_auth_users.alice: found something else, expected a "
                "bcrypt hash ($2y$…, as htpasswd "
                "-nBC 10 makes it)"
            ),
        ),
        (
            f"basic_auth_users:\n  a:b: {HASH}",
            "web.yaml:2: basic_auth_users.a:b: found the name 'a:b', expected one without ':'",
        ),
        (
            f"basic_auth_users:\n  alice: {HASH.replace('$10$', '$15$')}",
            (
                "web.yaml:2: basic_auth_users.alice: found a hash of cost 15, "
                "expected 4 to 14: it takes too long"
            ),
        ),
        (
            f"basic_auth_users:\n  alice: {HASH}\n  alice: {HASH}",
            "web.yaml:3: basic_auth_users.alice: found the key 'alice' a second time",
        ),
        (
            "rate_limit: {interval: often, burst: 1}",
            (
                "web.yaml:1: rate_limit.interval: found 'often', expected a duration "
                "such as 250ms, 5s, 1h30m or 30d"
            ),
        ),
        (
            "rate_limit: {interval: 1s}",
            "web.yaml:1: rate_limit.burst: found 0, expected 1 or more: nothing would ever be answered",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, message: str) -> None:
    assert problem(text) == message


def test_a_password_in_the_place_of_its_hash_is_not_repeated() -> None:
    assert "swordfish" not in problem("basic_auth_users: {alice: swordfish}")


def test_hashes_and_keys_are_not_in_what_is_shown_of_a_configuration() -> None:
    config = read(f"tls_server_config: {{cert: c, key: secret}}\nbasic_auth_users: {{alice: {HASH}}}")
    assert HASH not in repr(config)
    assert "secret" not in repr(config)


def test_empty_lists_leave_the_choice_to_openssl_as_in_go() -> None:
    tls = read(TLS + "  cipher_suites: []\n  curve_preferences: []").tls
    assert (tls.suites, tls.curve) == ((), "")


def test_all_suites_of_tls_1_3_may_be_named_beside_others() -> None:
    names = ", ".join((*TLS13, *TLS12))
    assert read(TLS + f"  cipher_suites: [{names}]").tls.suites == tuple(TLS12.values())
    assert "found no suite of TLS 1.2" in problem(TLS + f"  cipher_suites: [{', '.join(TLS13)}]")


def test_no_interval_is_no_limit() -> None:
    for text in ("rate_limit: {}", "rate_limit: {interval: 0, burst: 0}", "rate_limit: {interval: 0s}"):
        assert read(text).rate is None


def test_hashes_of_every_tool_are_taken() -> None:
    for prefix in ("$2a$", "$2b$", "$2y$"):
        config = read(f"basic_auth_users: {{alice: '{prefix}{hashed('x')[4:]}'}}")
        assert list(config.users) == ["alice"]


def judge(content: bytes) -> None:
    """Taken, or refused in one harmless line that names the file."""
    told = "web.yaml:"
    try:
        load(content, "web.yaml", DIRECTORY)
    except ConfigError as error:
        told = str(error)
    assert told.startswith("web.yaml:")
    assert not any(map(is_hostile, told))


words = st.text(max_size=12) | st.sampled_from(
    [*KEYS, *TlsServerConfig.__struct_fields__, *HEADERS, *TLS12, *CURVES, "TLS12", "interval", "burst", HASH]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
sections = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, values))


@settings(deadline=None)
@given(sections | values)
def test_whatever_is_written_is_taken_or_refused_in_one_line_that_names_the_file(found: object) -> None:
    text = yaml.safe_dump(found, allow_unicode=True)
    judge(text.encode())


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused_likewise(content: bytes) -> None:
    judge(content)
