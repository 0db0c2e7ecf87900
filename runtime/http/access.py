"""Who has access: hosts, names of client certificates, users with bcrypt passwords; the headers of answers.

Hashing a password is slow on purpose: it happens off the event loop, one password at a time, the number of
those that wait is bounded, and outcomes are cached as keyed hashes.
"""

import asyncio
import re
import secrets
from base64 import b64decode
from binascii import Error
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from enum import Enum
from hashlib import blake2b
from ipaddress import ip_address
from ssl import SSLContext
from threading import Thread
from typing import Any, Final

from msgspec import Struct, field

from runtime.log import Episode, Log
from runtime.text import visible

MAX_CHECKS: Final = 16
"""Passwords that are verified or wait for it: half a minute of one core at the highest cost."""
MAX_CHECKS_PER_CLIENT: Final = 4
CACHED: Final = 256
"""Right passwords that are cached, and as many wrong ones."""
_BCRYPT_BYTES: Final = 72
"""Bytes of a password that bcrypt reads."""
_NAME_KINDS: Final = frozenset({"DNS", "email", "IP Address", "URI"})

_strangers = Episode(Log("http"), "client certificates without an allowed name")

Check = Callable[[bytes, bytes], bool]
"""Whether a password belongs to a hash: bcrypt's checkpw."""


class Verdict(Enum):
    """The outcome for a request."""

    ADMITTED = "admitted"
    MISSING = "missing"
    """It has no name and password."""
    WRONG = "wrong"
    BUSY = "busy"
    """Its client has too many checks under way."""
    FULL = "full"
    """All clients together have."""


_HOST: Final = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")


class AllowedHosts:
    """The hosts by which clients may call this server without TLS and passwords.

    A page of another site reaches the server through a name of its own that resolves to this address (DNS
    rebinding), never through an address: every IP address is allowed, and every name must be known.
    """

    def __init__(self, listed: Collection[str], own: Collection[str]) -> None:
        """`listed` are those of --web.allowed-hosts; `own` are names of this node."""
        self._any = "*" in listed
        self._listed = bool(listed)
        names = {name.lower().rstrip(".") for name in own} | {name for name in listed if name[:1] != "."}
        self._names = frozenset(names | {name[1:] for name in listed if name[:1] == "."} | {"localhost"})
        self._suffixes = (".localhost", *(name for name in listed if name[:1] == "."))

    def allow(self, host: str, policy: "AccessPolicy") -> bool:
        """Whether a request with the header `Host: host` is answered; "" for a request without the header.

        Without a list, a policy with TLS or users allows every host: such a page has no certificate for its
        name, and no password.
        """
        protected = policy.tls is not None or policy.users is not None
        if self._any or not host or (protected and not self._listed):
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["v6"] or match["name"] or "").lower().rstrip(".")
        return name in self._names or name.endswith(self._suffixes) or _is_address(name)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class AccessPolicy(Struct, frozen=True):
    """What connections and requests must meet from now on. A header with an empty value is not sent."""

    tls: SSLContext | None = None
    allowed_names: frozenset[str] | None = None
    """Subject alternative names, one of which a client certificate must have; None: any certificate."""
    users: "UserGate | None" = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def allows_certificate(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client with this certificate (as getpeercert returns it) may connect."""
        if self.allowed_names is None:
            return True
        # IPv6 addresses have several spellings.
        allowed = self.allowed_names.union(map(_canonical, self.allowed_names))
        names = certificate_names(certificate)
        if allowed.isdisjoint(names):
            _strangers.failed(f"names: {visible(', '.join(names), limit=400) or 'none'}")
            return False
        return True


OPEN: Final = AccessPolicy()
"""Access for everybody: there is no web configuration."""


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The subject alternative names of a certificate; none without one."""
    entries = (certificate or {}).get("subjectAltName", ())
    return tuple(
        _canonical(value) if kind == "IP Address" else value for kind, value in entries if kind in _NAME_KINDS
    )


def _canonical(text: str) -> str:
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return text


class UserGate:
    """Admits the clients that have a password of `users` (names and the bcrypt hashes of their passwords)."""

    def __init__(
        self,
        users: Mapping[str, str],
        check: Check | None = None,
        *,
        most: int = MAX_CHECKS,
        per_client: int = MAX_CHECKS_PER_CLIENT,
    ) -> None:
        self._users = {name.encode(): hashed.encode() for name, hashed in users.items()}
        self._check = check
        self._most = most
        self._per_client = per_client
        self._waiting: Counter[str] = Counter()
        self._one_at_a_time = asyncio.Semaphore(1)
        self._secret = secrets.token_bytes(32)
        self._right = _Cache()
        self._wrong = _Cache()
        self._under_way: dict[bytes, asyncio.Task[bool]] = {}

    async def judge(self, authorization: str | None, client: str) -> Verdict:
        """The verdict on a request of `client` (its address) with this Authorization header."""
        pair = credentials(authorization)
        if pair is None:
            return Verdict.MISSING
        name, password = pair
        digest = self._digest(name, password)
        if self._right.has(digest):
            return Verdict.ADMITTED
        if self._wrong.has(digest):
            return Verdict.WRONG
        check = self._under_way.get(digest)
        if check is None:
            if self._waiting[client] >= self._per_client:
                return Verdict.BUSY
            if self._waiting.total() >= self._most:
                return Verdict.FULL
            self._waiting[client] += 1
            check = asyncio.create_task(self._verify(name, password, digest, client))
            self._under_way[digest] = check
        # A client that leaves does not cancel the check: others may wait for the same one.
        return Verdict.ADMITTED if await asyncio.shield(check) else Verdict.WRONG

    async def _verify(self, name: bytes, password: bytes, digest: bytes, client: str) -> bool:
        hashed = self._users.get(name)
        try:
            async with self._one_at_a_time:
                matches = await self._hash(password, hashed or self._hash_of_another(name))
        finally:
            del self._under_way[digest]
            self._waiting -= Counter((client,))
        admitted = matches and hashed is not None
        (self._right if admitted else self._wrong).add(digest)
        return admitted

    async def _hash(self, password: bytes, hashed: bytes) -> bool:
        """Hash in a daemon thread: the end of the process does not wait for it, which may take a second."""
        outcome: Future[bool] = Future()
        outcome.set_running_or_notify_cancel()

        def work() -> None:
            try:
                outcome.set_result(self._matches(password, hashed))
            except Exception as error:  # noqa: BLE001 -- raised in whoever waits
                outcome.set_exception(error)

        Thread(target=work, name="passwords", daemon=True).start()
        return await asyncio.wrap_future(outcome)

    def _matches(self, password: bytes, hashed: bytes) -> bool:
        if self._check is None:
            # Imported when it is needed: few processes have users.
            from bcrypt import checkpw  # noqa: PLC0415

            self._check = checkpw
        # bcrypt refuses longer ones: checking their start takes as long, and the outcome is wrong.
        return self._check(password[:_BCRYPT_BYTES], hashed) and len(password) <= _BCRYPT_BYTES

    def _digest(self, *parts: bytes) -> bytes:
        digest = blake2b(key=self._secret, digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        return digest.digest()

    def _hash_of_another(self, name: bytes) -> bytes:
        """The hash that an unknown name is checked against, in vain: some user's, always the same one.

        So the time of an answer does not tell which names exist, even where hashes differ in cost.
        """
        hashes = tuple(self._users.values())
        return hashes[int.from_bytes(self._digest(name)) % len(hashes)]


class _Cache:
    """The digests that were used last."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def has(self, digest: bytes) -> bool:
        found = digest in self._digests
        if found:
            self._digests.move_to_end(digest)
        return found

    def add(self, digest: bytes) -> None:
        self._digests[digest] = None
        while len(self._digests) > CACHED:
            self._digests.popitem(last=False)


def credentials(authorization: str | None) -> tuple[bytes, bytes] | None:
    """The name and the password of an Authorization header (RFC 7617); None where it has none."""
    scheme, _, rest = (authorization or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        pair = b64decode(rest.strip().encode("ascii"), validate=True)
    except (Error, UnicodeEncodeError):
        return None
    name, colon, password = pair.partition(b":")
    return (name, password) if colon else None
