"""The web configuration's keys: what is refused, and where an error points."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.certificates import hashed
from runtime.config_file import ConfigError
from runtime.http.web_config import HEADERS, KEYS, TlsServerConfig, load
from runtime.text import is_hostile

DIRECTORY = Path("/etc/web")
HASH = "$2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze"
TLS = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def read(text: str) -> Any:
    return load(text.encode(), "web.yaml", DIRECTORY)


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def test_every_key_is_read() -> None:
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
http_server_config:
  http2: false
  headers:
    Content-Security-Policy: default-src 'self'
    X-Frame-Options: sameorigin
    X-Content-Type-Options: nosniff
    X-XSS-Protection: ""
    Strict-Transport-Security: max-age=31536000
"""
    )
    assert config.pem == {"cert": "a certificate", "key": "a key", "client_ca_file": Path("/ca.pem")}
    assert config.tls.allowed_names == {"prometheus.example", "10.0.0.1"}
    assert config.headers["X-XSS-Protection"] == ""
    assert config.words() == (
        "TLS, client certificates, headers: Content-Security-Policy, X-Frame-Options, "
        "X-Content-Type-Options, X-XSS-Protection, Strict-Transport-Security"
    )


KINDS = (
    "expected one of 'NoClientCert', 'RequireAndVerifyClientCert', 'VerifyClientCertIfGiven', did you mean "
    "'RequireAndVerifyClientCert'?"
)
NO_HASH = "expected a bcrypt hash ($2y$…, as htpasswd -nBC 10 makes it)"
SUITES = "is not supported: TLS 1.3 and the AEAD suites of TLS 1.2 are offered"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: found an empty file, expected a configuration"),
        ("# nothing\n", "1: found an empty file, expected a configuration"),
        ("null", "1: found an empty file, expected a web configuration"),
        ("[]", "1: found an empty list, expected a mapping"),
        (
            "tls_server: {}",
            "1: tls_server: found an unknown key 'tls_server', did you mean 'tls_server_config'?",
        ),
        ("tls_server_config:", "1: tls_server_config: found nothing, expected a mapping"),
        *(
            (text, f"1: tls_server_config: expected the key '{key}_file' (or '{key}'), which is missing")
            for text, key in (("tls_server_config: {}", "cert"), ("tls_server_config: {cert: a}", "key"))
        ),
        (
            "http_server_config:\n  http2: true",
            "2: http_server_config.http2: only HTTP/1.1 is supported: leave the key out or set it to false",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Option: deny",
            (
                "3: http_server_config.headers.X-Frame-Option: the header 'X-Frame-Option' cannot be set, "
                "did you mean 'X-Frame-Options'?"
            ),
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: allow}}",
            "1: http_server_config.headers.X-Frame-Options: found 'allow', expected deny or sameorigin",
        ),
        (
            'http_server_config: {headers: {Strict-Transport-Security: "a\\r\\nSet-Cookie: b"}}',
            (
                "1: http_server_config.headers.Strict-Transport-Security: found 'a\\r\\nSet-Cookie: b', "
                "expected one line of at most 4096 ASCII characters"
            ),
        ),
        (
            "basic_auth_users: {}",
            "1: basic_auth_users: found no users: leave the key out to require no password",
        ),
        ("basic_auth_users: {alice: }", "1: basic_auth_users.alice: found nothing, expected text"),
        ('basic_auth_users: {alice: ""}', f"1: basic_auth_users.alice: found nothing, {NO_HASH}"),
        (
            "basic_auth_users: {alice: swordfish}",
            f"1: basic_auth_users.alice: found something else, {NO_HASH}",
        ),
        (
            f"basic_auth_users:\n  a:b: {HASH}",
            "2: basic_auth_users.a:b: found the name 'a:b', expected one without ':'",
        ),
        (
            f"basic_auth_users:\n  alice: {HASH.replace('$10$', '$15$')}",
            "2: basic_auth_users.alice: found a hash of cost 15, expected 4 to 14: it takes too long",
        ),
        (
            f"basic_auth_users:\n  alice: {HASH}\n  alice: {HASH}",
            "3: basic_auth_users.alice: found the key 'alice' a second time",
        ),
        (
            "rate_limit: {interval: 1s, burst: 5}",
            "1: rate_limit: is not supported: put a reverse proxy in front of this server for it",
        ),
    ],
)
def test_an_error_has_its_place(text: str, message: str) -> None:
    assert problem(text) == f"web.yaml:{message}"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("cert: inline", "cert: found beside cert_file, expected one of them"),
        ("keyfile: x", "keyfile: found an unknown key 'keyfile', did you mean 'key_file'?"),
        *(
            (f"client_auth_type: {kind}", f"client_auth_type: found '{kind}', {KINDS}")
            for kind in ("RequireAndVerify", "RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
        ),
        (
            "client_ca_file: ca",
            (
                "client_ca_file: found without a client_auth_type that verifies clients, "
                "such as RequireAndVerifyClientCert"
            ),
        ),
        (
            "client_auth_type: RequireAndVerifyClientCert",
            (
                "client_auth_type: found RequireAndVerifyClientCert without client_ca_file: "
                "nothing says whom to trust"
            ),
        ),
        (
            "client_allowed_sans: [a]\n  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca",
            (
                "client_allowed_sans: found without client_auth_type: RequireAndVerifyClientCert: "
                "no certificate, no name"
            ),
        ),
        (
            "client_allowed_sans: []\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca",
            "client_allowed_sans: found an empty list, expected a list of length >= 1",
        ),
        *(
            (
                f"{key}: TLS11",
                f"{key}: found 'TLS11', expected one of 'TLS12', 'TLS13', did you mean 'TLS13'?",
            )
            for key in ("min_version", "max_version")
        ),
        (
            "min_version: TLS13\n  max_version: TLS12",
            "min_version: found TLS13, expected at most max_version, TLS12",
        ),
        ("cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]", f"cipher_suites: {SUITES}"),
        ("prefer_server_cipher_suites: true", f"prefer_server_cipher_suites: {SUITES}"),
        ("curve_preferences: [X25519]", f"curve_preferences: {SUITES}"),
    ],
)
def test_an_error_of_tls_has_its_place(keys: str, message: str) -> None:
    assert problem(f"{TLS}  {keys}") == f"web.yaml:4: tls_server_config.{message}"


def test_hashes_and_keys_are_not_in_the_representation() -> None:
    config = read(f"tls_server_config: {{cert: c, key: secret}}\nbasic_auth_users: {{alice: {HASH}}}")
    assert HASH not in repr(config)
    assert "secret" not in repr(config)


def test_hashes_of_every_tool_are_accepted() -> None:
    for prefix in ("$2a$", "$2b$", "$2y$"):
        config = read(f"basic_auth_users: {{alice: '{prefix}{hashed('x')[4:]}'}}")
        assert list(config.users) == ["alice"]


words = st.text(max_size=12) | st.sampled_from(
    [*KEYS, *TlsServerConfig.__struct_fields__, *HEADERS, "TLS12", "interval", HASH]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
sections = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, values))


@settings(max_examples=60)
@given(
    sections.map(lambda found: yaml.safe_dump(found, allow_unicode=True).encode()) | st.binary(max_size=200)
)
def test_any_content_is_used_or_refused_in_one_line_that_names_the_file(content: bytes) -> None:
    text = "web.yaml:"
    try:
        load(content, "web.yaml", DIRECTORY)
    except ConfigError as error:
        text = str(error)
    assert text.startswith("web.yaml:")
    assert not any(map(is_hostile, text))
