"""Cipher suites and curves by the names that Go gives them, and what OpenSSL calls them. Pure.

Source: the constants of Go's crypto/tls, which exporter-toolkit's configuration speaks of.
"""

from collections.abc import Sequence
from typing import Final

from runtime.config_file import advice, quoted

TLS12: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Those that Go itself holds for secure."""

TLS13: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""All that TLS 1.3 has in Go, and in OpenSSL where nobody asks for others."""

CURVES: Final = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}

_OLD: Final = ("TLS_RSA_", "TLS_ECDHE_RSA_WITH_RC4", "TLS_ECDHE_ECDSA_WITH_RC4")


def openssl_suites(names: Sequence[str]) -> tuple[str, ...]:
    """What OpenSSL calls these suites of TLS 1.2, in their order.

    Raises ValueError for one that cannot be chosen: what was found, and why not.
    """
    known = (*TLS12, *TLS13)
    for name in names:
        if name in known:
            continue
        if name.startswith(_OLD) or name.endswith(("_3DES_EDE_CBC_SHA", "_CBC_SHA256")):
            raise ValueError(f"found {quoted(name)}, which Go and this program hold for insecure")
        hint = advice(name, known) or f", expected some of {', '.join(TLS12)}"
        raise ValueError(f"found {quoted(name)}, which is no cipher suite known here{hint}")
    newest = [name for name in names if name in TLS13]
    if newest and len(set(newest)) < len(TLS13):
        raise ValueError(
            f"found {quoted(newest[0])}: the suites of TLS 1.3 cannot be chosen one by one, all three are "
            "offered; name all of them or none"
        )
    chosen = tuple(TLS12[name] for name in names if name in TLS12)
    if not chosen:
        raise ValueError(f"found no suite of TLS 1.2, expected some of {', '.join(TLS12)}")
    return chosen


def openssl_curve(names: Sequence[str]) -> str:
    """What OpenSSL calls the one curve. Raises ValueError for none, several, or an unknown one."""
    for name in names:
        if name not in CURVES:
            hint = advice(name, tuple(CURVES)) or f", expected one of {', '.join(CURVES)}"
            raise ValueError(f"found {quoted(name)}, which is no curve known here{hint}")
    if len(names) != 1:
        raise ValueError(
            f"found {len(names)} curves, expected one: Python's ssl takes no order of several; "
            "without the key OpenSSL offers X25519 and the others in its own order"
        )
    return CURVES[names[0]]
