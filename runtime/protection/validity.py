"""From when until when certificates are good, read from their DER (RFC 5280, section 4.1). Pure.

Python's ssl tells it of a peer's certificate alone, not of one's own.
"""

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_CENTURY: Final = 50
"""Years of two digits from here on are of the last century (RFC 5280, section 4.1.2.5.1)."""

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when, in unix time."""

    begins: float
    ends: float


def earliest(pem: bytes) -> Validity | None:
    """That of the certificate in `pem` that ends first: no client takes a chain any longer. None where no
    certificate can be read.
    """
    return min(_all(pem), key=lambda validity: validity.ends, default=None)


def _all(pem: bytes) -> Iterator[Validity]:
    for found in _PEM.findall(pem):
        try:
            yield validity(ssl.PEM_cert_to_DER_cert(found.decode("ascii")))
        except ValueError:
            continue  # OpenSSL has the last word about what can be served


def validity(der: bytes) -> Validity:
    """The validity of one certificate. Raises ValueError for what is none."""
    certificate, _ = _of(der, _SEQUENCE)
    fields, _ = _of(certificate, _SEQUENCE)
    if fields[:1] == bytes([_VERSION]):
        _, _, fields = _next(fields)
    for _ in ("serial number", "signature", "issuer"):
        _, _, fields = _next(fields)
    span, _ = _of(fields, _SEQUENCE)
    begins_tag, begins, span = _next(span)
    ends_tag, ends, _ = _next(span)
    return Validity(_time(begins_tag, begins), _time(ends_tag, ends))


def _of(data: bytes, wanted: int) -> tuple[bytes, bytes]:
    """The content of what `data` begins with, which has to be `wanted`, and what follows."""
    tag, content, rest = _next(data)
    if tag != wanted:
        raise ValueError(f"found tag {tag:#x}, expected {wanted:#x}")
    return content, rest


def _next(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of what `data` begins with, and what follows."""
    if len(data) < 2:
        raise ValueError("it ends too early")
    tag, length, at = data[0], data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at])
    if at + length > len(data):
        raise ValueError("it ends too early")
    return tag, data[at : at + length], data[at + length :]


def _time(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = f"{'19' if int(text[:2]) >= _CENTURY else '20'}{text}"
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"found tag {tag:#x}, expected a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
