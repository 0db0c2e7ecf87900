"""Authorities that kubectl accepts are accepted everywhere, whatever this version of Python does."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from exporter.apiserver.kubeconfig import ApiServerAccess
from exporter.plugins.client import PluginAccess, PluginCredentials
from harness.certificates import Certificates, shake
from plugin.serving import prober
from runtime.http.client import tls_context
from runtime.http.web_config import read_files


@pytest.fixture(params=["3.13", "3.11", "this"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of a version of Python: 3.13 is strict, and accepts an intermediate authority."""
    make = ssl.create_default_context

    def other(*, cafile: Path | None = None, cadata: str | None = None) -> ssl.SSLContext:
        context = make(cafile=cafile, cadata=cadata)
        newer = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~newer
        if request.param == "3.13":
            context.verify_flags |= newer
        return context

    if request.param != "this":
        monkeypatch.setattr(ssl, "create_default_context", other)


def _of_probes(ca: Path) -> ssl.SSLContext:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(ca))
        prober.tls.cache_clear()
        try:
            return prober.tls()
        finally:
            prober.tls.cache_clear()


Client = Callable[[Path], ssl.SSLContext]

CLIENTS: dict[str, Client] = {
    "commands": lambda ca: tls_context(ca, None, None),
    "plugins": lambda ca: PluginCredentials(PluginAccess(ca_file=ca)).tls(),
    "service account": lambda ca: ApiServerAccess("https://localhost", ca=ca).tls(),
    "kubeconfig": lambda ca: ApiServerAccess("https://localhost", ca=ca.read_text()).tls(),
    "probes": _of_probes,
}


def _web(made: Certificates, **keys: str) -> ssl.SSLContext:
    context = read_files(made.configuration(**keys)).tls_context()
    assert context is not None
    return context


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
def test_an_authority_without_key_usage_is_trusted(client: Client, tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.without_key_usage()
    shake(client(made.path("ca.crt")), _web(made))


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
def test_an_intermediate_authority_is_trusted_without_its_root(client: Client, tmp_path: Path) -> None:
    made = Certificates(tmp_path, trustme.CA().create_child_ca())
    shake(client(made.path("ca.crt")), _web(made))


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
def test_another_authority_is_not_trusted(client: Client, tmp_path: Path) -> None:
    made, other = Certificates(tmp_path / "one"), Certificates(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(client(other.path("ca.crt")), _web(made))


@pytest.mark.parametrize("intermediate", [False, True])
def test_authorities_of_clients_likewise(*, intermediate: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    made = Certificates(tmp_path, authority.create_child_ca() if intermediate else authority)
    if not intermediate:
        made.without_key_usage()
    server = _web(made, client_ca_file="ca.crt", client_auth_type="RequireAndVerifyClientCert")
    client = tls_context(made.path("ca.crt"), made.client("prometheus"), None)
    shake(client, server)
