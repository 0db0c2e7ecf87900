"""Certificates and keys as files, and web configurations that name them."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt
import trustme


def hashed(password: str, cost: int = 4) -> str:
    """bcrypt's hash, as quick as it can be."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


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

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """How a client speaks that trusts the authority and shows `certificate`."""
        made = ssl.create_default_context(cafile=self.path("ca.crt"))
        if certificate is not None:
            made.load_cert_chain(certificate)
        return made
