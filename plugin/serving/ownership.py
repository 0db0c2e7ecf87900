"""Claims of the resources that run: who may claim now, and who is told that something is free again.

What this node's plugin processes serve, remembered beside their sockets for the next one.

A resource, or its devices, may be called otherwise after an upgrade, while pods hold devices by former
names. The kubelet tells those names and, where there were any, the device nodes that were given. So it is
written down which resources were exclusive, whose devices nobody else may have, and which device each id
stands for: before that id is given. Processes that run at the same time share the file.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kubelet.holders import Held
from plugin.devices.claims import Claims, claim_of
from plugin.devices.device import Device, Sharing
from plugin.devices.ledger import Entries, Holding, Holdings, Ledger, Page, Present
from plugin.discovery.host import os_problem
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.sockets import PREFIX
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log


class Ownership:
    """The claims of a process, and what pods hold on its node."""

    def __init__(self) -> None:
        self._claims = Claims()
        self._ledger = Ledger()
        self._holdings = Holdings(self._ledger)
        self._wakers: dict[str, Callable[[], None]] = {}
        self._present: dict[str, Present] = {}
        self._before: frozenset[str] = frozenset()
        self._served: set[str] = set()
        self._learned = False
        self._waits: dict[str, frozenset[Holding]] = {}
        self._looked = asyncio.Event()
        self._writers: list[asyncio.Future[None]] = []
        self.changed = asyncio.Event()
        """Set whenever there is something else to write for the next process."""
        self.urgent = asyncio.Event()
        """Set when somebody waits for that."""
        self.written_down = False
        """Whether anybody writes it."""

    def remember(
        self, names: Collection[str], entries: Entries | None = None, *, damaged: bool = False
    ) -> None:
        """Exclusive resources that former processes served, and what their ids stood for.

        What pods hold of them is believed. `damaged`: what was written down of that cannot be read.
        """
        self._before = frozenset(names)
        self._ledger.recall(entries or {})
        self._holdings.remember(self._before, doubted=damaged)

    @property
    def names(self) -> frozenset[str]:
        """The exclusive resources that the next process is to know of.

        One of a former process is forgotten when nothing of it is held any more.
        """
        own = self._holdings.exclusive
        return own - (self._before - self._served - self._holdings.resources) if self._learned else own

    @property
    def learned(self) -> bool:
        """Whether the kubelet has said what is held."""
        return self._learned

    @property
    def held_names(self) -> frozenset[str]:
        """Those of them of which pods may hold something, as far as the kubelet has told."""
        held = self._holdings.exclusive & self._holdings.resources
        return held if self._learned else held | self._before

    def configure(self, order: Sequence[str], shared: Collection[str] = ()) -> None:
        """The exclusive resources, in the order of the configuration, and the others."""
        self._claims.configure(order)
        self._holdings.configure(order, shared)
        self._served |= {*order}
        self._looked.set()
        self.changed.set()

    @property
    def generation(self) -> int:
        """Grows whenever something else is known of what pods hold."""
        return self._holdings.generation

    async def turn(self, resource: str, limit: float) -> None:
        """Wait until every earlier resource has looked for the first time, `limit` seconds at most.

        And until every other one of which something is held has said what that is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._claims.awaited(resource, self._holders(resource)):
                    self._looked.clear()
                    await self._looked.wait()

    def _holders(self, resource: str) -> frozenset[str]:
        return self._holdings.resources - {resource}

    def stake(
        self,
        resource: str,
        claims: Callable[[frozenset[str]], Collection[str]],
        held: Held | None,
        nodes: Mapping[Holding, frozenset[str]],
    ) -> None:
        """`resource` begins: what is held on the node, and what of that it finds is its own.

        `claims` gives the claims of those ids. `held`: None where nobody tells.
        """
        self._holdings.own(resource)
        self._served.add(resource)
        # It speaks for what is held of it by itself now: who took that for something of before looks again.
        self._wake([name for name, waits in self._waits.items() if any(of == resource for of, _ in waits)])
        self.learn(held, nodes)
        self._claims.stake(resource, claims(self._holdings.of(resource)))
        self._looked.set()
        self.changed.set()

    def learn(self, held: Held | None, nodes: Mapping[Holding, frozenset[str]]) -> None:
        """Take in what the kubelet says is held; None where it does not say."""
        if held is None:
            return
        self._holdings.learn(held, nodes)
        if not self._learned:
            self._learned = True
            self._wake(list(self._wakers))
        former = [name for name in self._ledger.resources if not self._holdings.is_served(name)]
        for name in former:
            free = self._ledger.of(name).keys() - self._holdings.of(name)
            self._ledger.forget([(name, i) for i in free])

    def offer(self, resource: str, claims: Mapping[str, str]) -> None:
        """These ids are advertised, for the devices of these claims; nobody else serves `resource`."""
        if self._ledger.offer(resource, claims, self._holdings.of(resource) if self._learned else None):
            self.changed.set()

    async def give(self, resource: str, claims: Mapping[str, str], limit: float) -> None:
        """Have it written down what these ids stand for, before they are given.

        What cannot be written, or not within `limit` seconds, is given nevertheless, for that is told.
        """
        if self._ledger.give(resource, claims):
            self._holdings.changed()
        if self._ledger.unwritten(resource, claims) and self.written_down:
            waits = asyncio.get_running_loop().create_future()
            self._writers.append(waits)
            self.changed.set()
            self.urgent.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await waits

    def page(self) -> tuple[Page, Callable[[], None]]:
        """What is to be written now, and what is to be called when that was tried."""
        self.changed.clear()
        self.urgent.clear()
        writers, self._writers = self._writers, []

        def tried() -> None:
            for waits in writers:
                if not waits.done():
                    waits.set_result(None)

        return self._ledger.page(), tried

    @property
    def forgotten(self) -> frozenset[str]:
        """Names of former processes that the next process need not know."""
        return self._holdings.exclusive - self.names

    def written(self, page: Page, entries: Entries, forgotten: frozenset[str]) -> None:
        """`page` has been written, without `forgotten`: another process may write that anew."""
        self._ledger.written(page, entries)
        self._before -= forgotten
        self._holdings.disown(forgotten)

    def looked(self, resource: str) -> None:
        """`resource` has looked for the first time, and claimed what is its own."""
        self._claims.looked(resource)
        self._looked.set()

    def held(
        self,
        resource: str,
        devices: Mapping[str, Device],
        sharing: Sharing,
        present: Present,
        freed: Callable[[], None],
    ) -> Mapping[str, str]:
        """Which of `devices`, advertised as `sharing` says, pods hold as something else, and as what.

        `freed` is called when one is held no more.
        """
        self._wakers[resource] = freed
        self._present[resource] = present
        found: dict[str, Holding] = {}
        for device_id, device in devices.items():
            holding = self._holdings.holding(resource, device, sharing, self._present)
            if holding is not None:
                found[device_id] = holding
                self._ledger.believe(holding, "" if device.found is None else claim_of(device.found))
        self._waits[resource] = frozenset(found.values())
        return {i: f"{name}: a pod holds it as {other}" for i, (name, other) in found.items()}

    def waits(self, resource: str) -> bool:
        """Whether `resource` was refused something that a pod holds as something else."""
        return bool(self._waits.get(resource))

    def review(self, listed: Held, now: float, patience: float) -> None:
        """Take in who holds what by now; who waits for what nobody holds any more is woken."""
        forgotten = self._holdings.review(listed, now, patience)
        self._ledger.forget(forgotten)
        if forgotten:
            self.changed.set()
        self._wake([name for name, waits in self._waits.items() if waits & forgotten])

    def claim(self, resource: str, claims: Collection[str], freed: Callable[[], None]) -> Mapping[str, str]:
        """Claim all this and nothing else; what others have is given back, with who has it.

        `freed` is called when some of that is free again.
        """
        self._wakers[resource] = freed
        claimed = self._claims.claim(resource, claims)
        self._wake(claimed.wake)
        return claimed.refused

    def leave(self, resource: str, held: Mapping[str, Device]) -> None:
        """`resource` is gone; `held`: what pods may hold of it, by advertised id."""
        claims = {i: claim_of(device.found) for i, device in held.items() if device.found is not None}
        self._ledger.leave(resource, claims, self._holdings.of(resource))
        self._holdings.leave(resource, held)
        self.changed.set()
        self.release(resource)

    def release(self, resource: str) -> None:
        """`resource` is gone, and nothing is held of it."""
        self._wakers.pop(resource, None)
        self._present.pop(resource, None)
        self._waits.pop(resource, None)
        self._wake(self._claims.release(resource))

    def _wake(self, resources: Collection[str]) -> None:
        for name in resources:
            if name in self._wakers:
                self._wakers[name]()


NAME: Final = f".{PREFIX}served"
MOST: Final = 1000
MAX_BYTES: Final = 16 << 20
"""The kubelet takes lists of 4 MiB, of some hundred thousand ids."""
LIMIT: Final = 5.0
AGAIN: Final = 30.0
"""Seconds after which what could not be written is tried again."""
PAUSE: Final = 0.1
"""Seconds between two writes that nobody waits for."""

_log = Log("predecessors")

_Name = Annotated[str, msgspec.Meta(max_length=512)]


class Served(msgspec.Struct, frozen=True):
    """What is in the file. `claims`: by resource and advertised id; older versions know nothing of it."""

    version: Literal[1] = 1
    resources: Annotated[list[_Name], msgspec.Meta(max_length=MOST)] = []
    claims: dict[_Name, dict[_Name, str]] = {}


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Served)


class DamagedError(ValueError):
    """The file is there, and is none that a plugin wrote."""


class Predecessors:
    """Tells `ownership` what was served before, and the next process what is now. Run `run()`."""

    def __init__(self, directory: Path, ownership: Ownership) -> None:
        self._directory = directory
        self._path = directory / NAME
        self._ownership = ownership
        self._offload = Offload(1)
        self._failing = Episode(_log, "cannot remember which resources are served")

    def recall(self) -> None:
        """Tell of those before. Blocking, once, before anything is served."""
        self._ownership.written_down = True
        try:
            found = read(self._path)
        except DamagedError as error:
            _log.warn("cannot read which resources were served", path=self._path, reason=str(error))
            self._ownership.remember((), damaged=True)
        else:
            self._ownership.remember(found.resources, found.claims)

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Write down whatever is served, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(watcher))
            while True:
                await self._write()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE):
                        await self._ownership.urgent.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self.failing is None else AGAIN):
                        await self._ownership.changed.wait()

    @property
    def failing(self) -> str | None:
        """Why it cannot be written, in words; None while it can."""
        return self._failing.reason

    def end(self) -> None:
        """Keep only what pods may hold of, or nothing at all: after everything has ended. Blocking."""
        self._ownership.written_down = False
        page, tried = self._ownership.page()
        try:
            held = self._ownership.held_names
            own = self._ownership.names | self._ownership.forgotten
            exchange(self._path, _merge(page, held, own - held))
        except OSError as error:
            self._failing.failed(os_problem(error))
        finally:
            tried()

    async def _follow(self, watcher: DirectoryWatcher) -> None:
        """kubelet: it may empty its directory when it starts. And another process may have written it."""
        async for change in watcher.follow(self._directory, contents=False):
            if change.kind is Kind.RESCAN or change.name == NAME:
                self._ownership.changed.set()

    async def _write(self) -> None:
        page, tried = self._ownership.page()
        names, forgotten = self._ownership.names, self._ownership.forgotten
        try:
            there = await self._offload.run(
                lambda: exchange(self._path, _merge(page, names, forgotten)), limit=LIMIT
            )
        except OSError as error:
            self._failing.failed(os_problem(error))
        except StuckError as error:
            self._failing.failed(str(error))
        else:
            if there is not None:
                self._ownership.written(page, there.claims, forgotten)
            self._failing.recovered()
        finally:
            tried()


def _merge(page: Page, names: Collection[str], forgotten: Collection[str]) -> Callable[[Served], Served]:
    def merge(found: Served) -> Served:
        others = [name for name in found.resources if name not in forgotten]
        # Where there are too many, those of this process count first.
        every = list(dict.fromkeys((*sorted(names), *others)))[:MOST]
        claims = {name: dict(of) for name, of in page.merged(found.claims).items()}
        merged = Served(1, sorted(every), claims)
        if len(_ENCODER.encode(merged)) <= MAX_BYTES:
            return merged
        return Served(1, merged.resources, {name: dict(of) for name, of in page.shortened(claims).items()})

    return merge


def read(path: Path) -> Served:
    """What is written at `path`; nothing where there is no such file. Blocking. Raises DamagedError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DamagedError(f"it has more than {MAX_BYTES} bytes")
        return _DECODER.decode(content)
    except FileNotFoundError:
        return Served()
    except OSError as error:
        raise DamagedError(os_problem(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(str(error)) from None


def exchange(path: Path, change: Callable[[Served], Served]) -> Served | None:
    """Put there what `change` makes of what is there, whole or not at all; returns what is there then.

    None where there is no directory yet: nobody can be served. What is damaged counts for nothing, and
    what says nothing is removed. Blocking. Raises OSError.
    """
    try:
        with _alone(path.parent) as directory:
            damaged = False
            try:
                before = read(path)
            except DamagedError:
                before, damaged = Served(), True
            after = change(before)
            if after == Served():
                path.unlink(missing_ok=True)
            elif damaged or after != before:
                _replace(path, _ENCODER.encode(after))
                # Some file systems have no such thing for directories.
                with suppress(OSError):
                    os.fsync(directory)
            return after
    except FileNotFoundError:
        return None


@contextmanager
def _alone(directory: Path) -> Generator[int]:
    """No other process that does so writes meanwhile."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems have no locks: what two processes write is then put right by either that follows.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _replace(path: Path, content: bytes) -> None:
    if len(content) > MAX_BYTES:
        raise OSError(f"more than {MAX_BYTES} bytes are to be remembered")
    new = path.with_name(f"{path.name}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as stream:  # noqa: PTH123 -- a descriptor
            stream.write(content)
            stream.flush()
            os.fsync(file)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
