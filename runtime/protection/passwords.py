"""Who is let in by name and password. Hashing is slow on purpose: it is bounded, and what it found is kept.

What takes time takes as long for a name that nobody has as for one that somebody has; what is kept is a
keyed hash, never a password.
"""

import asyncio
import secrets
from base64 import b64decode
from binascii import Error
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from queue import SimpleQueue
from threading import Thread
from typing import Final

LIMIT: Final = 16
"""Passwords that are hashed or wait for it, at most: one core's half minute at the highest cost."""
EACH: Final = 4
"""Of those, how many of one client."""
KEPT: Final = 256
"""Names with their passwords of which it is kept that they are right, and as many that are wrong."""
_LONGEST: Final = 72
"""Bytes of a password that bcrypt takes."""

Check = Callable[[bytes, bytes], bool]
"""Whether a password is that of a hash: bcrypt's."""


class Verdict(Enum):
    """What became of a request."""

    ADMITTED = "admitted"
    MISSING = "missing"
    """It has no name and password."""
    WRONG = "wrong"
    BUSY = "busy"
    """Its client has others under way."""
    FULL = "full"
    """Too many are under way."""


class Hashing:
    """One thread that hashes for all, and what waits for it. It outlives a change of users."""

    def __init__(self, check: Check | None = None, *, limit: int = LIMIT, each: int = EACH) -> None:
        self._check = check
        self._limit = limit
        self._each = each
        self._waiting: Counter[str] = Counter()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._is_closed = False

    def room(self, client: str) -> Verdict | None:
        """Why one more of `client` cannot be hashed now; None where it can."""
        if self._waiting[client] >= self._each:
            return Verdict.BUSY
        return Verdict.FULL if self._waiting.total() >= self._limit else None

    def begin(self, password: bytes, hashed: bytes, client: str) -> "asyncio.Future[bool]":
        """Whether `password` is that of the hash, once it is known."""
        self._waiting[client] += 1
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._leave(client))
        self._jobs.put(_Job(future, password, hashed))
        if self._thread is None:
            # A daemon: the end of the process does not wait for a hash, which may take seconds.
            self._thread = Thread(target=self._work, name="passwords", daemon=True)
            self._thread.start()
        return future

    def _leave(self, client: str) -> None:
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._is_closed:
            try:
                outcome: bool | Exception = self._is(job.password, job.hashed)
            except Exception as error:  # noqa: BLE001 -- told to those who wait
                outcome = error
            # RuntimeError: the loop has ended meanwhile, and with it who waited.
            with suppress(RuntimeError):
                job.future.get_loop().call_soon_threadsafe(_settle, job.future, outcome)

    def _is(self, password: bytes, hashed: bytes) -> bool:
        if self._check is None:
            # Imported when it is needed: few have passwords.
            from bcrypt import checkpw  # noqa: PLC0415

            self._check = checkpw
        # bcrypt refuses more; what it is asked instead takes as long, and is wrong whatever it says.
        is_right = self._check(password[:_LONGEST], hashed)
        return is_right and len(password) <= _LONGEST

    def close(self) -> None:
        """Begin no more."""
        self._is_closed = True
        self._jobs.put(None)


@dataclass(frozen=True, slots=True)
class _Job:
    future: "asyncio.Future[bool]"
    password: bytes
    hashed: bytes


def _settle(future: "asyncio.Future[bool]", outcome: bool | Exception) -> None:  # noqa: FBT001 -- it is the result
    if future.cancelled():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Gate:
    """Lets in who has one of `users` (names, and the bcrypt hashes of their passwords)."""

    def __init__(self, users: Mapping[str, str], hashing: Hashing) -> None:
        self._users = {name.encode(): hashed.encode() for name, hashed in users.items()}
        self._hashing = hashing
        self._secret = secrets.token_bytes(32)
        self._decoys = [_decoy(hashed) for hashed in self._users.values()]
        self._right = _Kept()
        self._wrong = _Kept()
        self._under_way: dict[bytes, asyncio.Future[bool]] = {}

    async def judge(self, authorization: str | None, client: str) -> Verdict:
        """What becomes of a request of `client` (its address) with this Authorization header."""
        pair = credentials(authorization)
        if pair is None:
            return Verdict.MISSING
        name, password = pair
        hashed = self._users.get(name) or self._decoy(name)
        digest = self._digest(name, password)
        if self._right.has(digest):
            return Verdict.ADMITTED
        if self._wrong.has(digest):
            return Verdict.WRONG
        found = self._under_way.get(digest)
        if found is None:
            refused = self._hashing.room(client)
            if refused is not None:
                return refused
            found = self._hashing.begin(password, hashed, client)
            self._under_way[digest] = found
            found.add_done_callback(lambda done: self._found(digest, done, known=name in self._users))
        # Whoever goes meanwhile leaves the answer to those that ask the same.
        is_right = await asyncio.shield(found)
        return Verdict.ADMITTED if is_right and name in self._users else Verdict.WRONG

    def _found(self, digest: bytes, done: "asyncio.Future[bool]", *, known: bool) -> None:
        self._under_way.pop(digest, None)
        if not done.cancelled() and done.exception() is None:
            (self._right if done.result() and known else self._wrong).keep(digest)

    def _digest(self, *parts: bytes) -> bytes:
        digest = blake2b(key=self._secret, digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        return digest.digest()

    def _decoy(self, name: bytes) -> bytes:
        """The hash that a name which nobody has is measured by: as dear as some user's, always the same.

        So an unknown name cannot be told by its time, not even where users' hashes differ in cost.
        """
        return self._decoys[int.from_bytes(self._digest(name)) % len(self._decoys)]


class _Kept:
    """The digests that were met last."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def has(self, digest: bytes) -> bool:
        found = digest in self._digests
        if found:
            self._digests.move_to_end(digest)
        return found

    def keep(self, digest: bytes) -> None:
        self._digests[digest] = None
        while len(self._digests) > KEPT:
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


def _decoy(hashed: bytes) -> bytes:
    """A hash of the same cost that is nobody's."""
    alphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    rest = "".join(secrets.choice(alphabet) for _ in range(31))
    salt = "".join(secrets.choice(alphabet) for _ in range(21))
    return hashed[:7] + f"{salt}.{rest}".encode()
