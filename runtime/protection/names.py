"""Whose certificates are let in: client_allowed_sans. Pure."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from runtime.text import visible

_KINDS = frozenset({"DNS", "email", "IP Address", "URI"})


def names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The subject alternative names of a certificate, as ssl's getpeercert tells it; none without one."""
    entries = (certificate or {}).get("subjectAltName", ())
    return tuple(
        _address(value) if kind == "IP Address" else value for kind, value in entries if kind in _KINDS
    )


def is_allowed(certificate: Mapping[str, Any] | None, allowed: frozenset[str] | None) -> bool:
    """Whether one of the certificate's names is `allowed`, exactly; None allows every certificate."""
    if allowed is None:
        return True
    # OpenSSL and people write an IPv6 address in different ways.
    return not allowed.union(map(_address, allowed)).isdisjoint(names(certificate))


def told(certificate: Mapping[str, Any] | None) -> str:
    """Its names for a log."""
    return visible(", ".join(names(certificate)), limit=400) or "none"


def _address(text: str) -> str:
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return text
