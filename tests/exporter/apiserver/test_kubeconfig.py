"""exporter.apiserver.kubeconfig: access by a service account and by a kubeconfig."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from exporter.apiserver.kubeconfig import ApiServerAccessError, api_server_access


@pytest.fixture(scope="module")
def pair() -> tuple[str, str]:
    """An authority's certificate and its key, as PEM."""
    made = trustme.CA()
    return made.cert_pem.bytes().decode(), made.private_key_pem.bytes().decode()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _config(path: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "here",
        "clusters": [{"name": "other", "cluster": {"server": "x"}}, {"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
    } | more
    file = path / "kubeconfig"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


HTTPS = {"server": "https://api.example:6443/"}


def test_service_account_needs_no_flag(tmp_path: Path, pair: tuple[str, str]) -> None:
    (tmp_path / "ca.crt").write_text(pair[0], encoding="ascii")
    (tmp_path / "token").write_text("secret\n", encoding="ascii")
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    way = api_server_access(None, environment, account=tmp_path)
    assert way.server == "https://10.0.0.1:443"
    assert way.authorization() == "Bearer secret"
    assert way.tls().check_hostname
    (tmp_path / "token").write_text("replaced", encoding="ascii")
    assert way.authorization() == "Bearer replaced"
    environment["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert api_server_access(None, environment, account=tmp_path).server == "https://[fd00::1]:443"
    with pytest.raises(ApiServerAccessError, match="KUBERNETES_SERVICE_HOST is not set"):
        api_server_access(None, {}, account=tmp_path)
    (tmp_path / "token").unlink()
    with pytest.raises(ApiServerAccessError, match="automountServiceAccountToken"):
        api_server_access(None, environment, account=tmp_path)


def test_kubeconfig_has_inline_data_or_files(tmp_path: Path, pair: tuple[str, str]) -> None:
    certificate, key = pair
    data = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
    way = api_server_access(
        _config(tmp_path, HTTPS | {"certificate-authority-data": _encoded(certificate)}, data), {}
    )
    assert way.server == "https://api.example:6443"
    assert way.authorization() is None
    assert way.tls().get_ca_certs()
    (tmp_path / "here.pem").write_text(certificate, encoding="ascii")
    (tmp_path / "key.pem").write_text(key, encoding="ascii")
    (tmp_path / "token").write_text("from a file", encoding="ascii")
    files = {"tokenFile": "token", "client-certificate": "here.pem", "client-key": "key.pem"}
    cluster = HTTPS | {"certificate-authority": "here.pem", "tls-server-name": "other.example"}
    way = api_server_access(_config(tmp_path, cluster, files), {})
    assert way.authorization() == "Bearer from a file"
    assert way.server_name == "other.example"
    assert way.tls().get_ca_certs()
    (tmp_path / "here.pem").write_text("no certificate", encoding="ascii")
    with pytest.raises(ApiServerAccessError, match="cannot be used"):
        way.tls()
    (tmp_path / "here.pem").unlink()
    with pytest.raises(ApiServerAccessError, match=r"here\.pem: No such file"):
        way.tls()


def test_insecure_skip_tls_verify_trusts_any_certificate(tmp_path: Path) -> None:
    way = api_server_access(_config(tmp_path, HTTPS | {"insecure-skip-tls-verify": True}, {"token": "t"}), {})
    assert not way.tls().check_hostname


@pytest.mark.parametrize(
    ("cluster", "user", "more", "says"),
    [
        ({"server": "api.example"}, {}, {}, "expected https://HOST:PORT"),
        (HTTPS, {"exec": {"command": "x"}}, {}, "exec is not served"),
        (HTTPS, {"auth-provider": {"name": "x"}}, {}, "auth-provider is not served"),
        (HTTPS, {"username": "x"}, {}, "username is not served"),
        (HTTPS | {"proxy-url": "http://x"}, {}, {}, "proxy-url is not served"),
        (HTTPS, {"client-certificate": "x"}, {}, "expected both"),
        (HTTPS | {"certificate-authority-data": "!"}, {}, {}, "expected base64"),
        (HTTPS, {}, {"current-context": "there"}, "'there', which is no context"),
        (HTTPS, {}, {"users": []}, "its cluster or user is not there"),
        (HTTPS, {"token": 7}, {}, "expected a kubeconfig"),
    ],
)
def test_unsupported_kubeconfig_is_one_clear_error(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    file = _config(tmp_path, cluster, user, **more)
    with pytest.raises(ApiServerAccessError, match=says) as caught:
        api_server_access(file, {})
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"a: [", "expected a kubeconfig"),
        (b"x" * 2_000_000, "larger than"),
        (b"\xff\xfe\x00", "no text"),
    ],
)
def test_invalid_kubeconfig_is_one_clear_error(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "kubeconfig").write_bytes(content)
    with pytest.raises(ApiServerAccessError, match=says):
        api_server_access(tmp_path / "kubeconfig", {})
