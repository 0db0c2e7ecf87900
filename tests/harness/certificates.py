"""Certificates and keys as files, and web configurations that name them."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def hashed(password: str, cost: int = 4) -> str:
    """bcrypt's hash, as quick as it can be."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


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


@dataclass(slots=True)
class Certificates:
    """A directory with a server's certificate (tls.crt, tls.key) and its authority's (ca.crt)."""

    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    names: tuple[str, ...] = ("localhost", "127.0.0.1", "::1")

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.authority.cert_pem.write_to_path(str(self.directory / "ca.crt"))
        self.renew()

    def path(self, name: str) -> Path:
        """A file of the directory."""
        return self.directory / name

    def pair(self, *names: str) -> tuple[bytes, bytes]:
        """A new certificate of the authority with its chain, and its key."""
        made = self.authority.issue_cert(*(names or self.names))
        return b"".join(blob.bytes() for blob in made.cert_chain_pems), made.private_key_pem.bytes()

    def renew(self) -> bytes:
        """Another certificate for the server; its PEM."""
        certificate, key = self.pair()
        self.path("tls.crt").write_bytes(certificate)
        self.path("tls.key").write_bytes(key)
        return certificate

    def client(self, *names: str) -> Path:
        """A file with a client's certificate and key."""
        certificate, key = self.pair(*names)
        path = self.path(f"{names[0].replace('/', '_')}.pem")
        path.write_bytes(key + certificate)
        return path

    def configuration(self, text: str = "", **tls: str) -> Path:
        """web.yaml: TLS by the server's files, with further keys, and `text` behind."""
        keys = {"cert_file": "tls.crt", "key_file": "tls.key"} | tls
        lines = [f"  {key}: {value}" for key, value in keys.items()]
        path = self.path("web.yaml")
        path.write_text("\n".join(("tls_server_config:", *lines, text)) + "\n")
        return path

    def without_key_usage(self) -> None:
        """Write ca.crt anew, of the same key and without keyUsage, as plain `openssl req -x509` has it."""
        old = x509.load_pem_x509_certificate(self.authority.cert_pem.bytes())
        key = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        new = x509.CertificateBuilder(
            *(old.issuer, old.subject, key.public_key(), old.serial_number),
            *(old.not_valid_before_utc, old.not_valid_after_utc),
            [extension for extension in old.extensions if not isinstance(extension.value, x509.KeyUsage)],
        ).sign(key, hashes.SHA256())
        self.path("ca.crt").write_bytes(new.public_bytes(serialization.Encoding.PEM))

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """How a client speaks that trusts the authority and shows `certificate`."""
        made = ssl.create_default_context(cafile=self.path("ca.crt"))
        if certificate is not None:
            made.load_cert_chain(certificate)
        return made
