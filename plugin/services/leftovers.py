"""What resources that are no more have left on the host: found by their records, and removed.

A resource that goes leaves nothing behind; one whose process ends leaves what running pods need.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon.directory import DirectoryWatcher, Kind
from daemon.log import Episode, Log
from plugin.core.plan import ResourcePlan
from plugin.discovery.host import HostRoot
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import os_problem
from plugin.services.belongings import Belongings, Record, records
from plugin.services.clock import Clock
from plugin.services.giving import discard_specification
from plugin.services.lease import is_at
from plugin.services.side_files import SideFiles
from plugin.services.sockets import LEASE_ENDING, RECORD_ENDING
from plugin.services.trying import try_each

INTERVAL: Final = 60.0
"""Seconds between looks that nothing calls for."""
LIMIT: Final = 20.0

_log = Log("leftovers")


class Leftovers:
    """Removes what is left of resources that nobody serves any more. Run `run()`."""

    def __init__(
        self,
        directory: Path,
        host: HostRoot,
        wanted: Callable[[], tuple[ResourcePlan, ...]],
        clock: Clock,
    ) -> None:
        """`directory`: where the records are; `wanted`: what the configuration asks for now."""
        self._directory = directory
        self._host = host
        self._wanted = wanted
        self._clock = clock
        self._offload = Offload(1)
        self._look = asyncio.Event()
        self._failing = Episode(_log, "cannot remove what is left of a resource")
        self._unreadable = Episode(_log, "cannot read what was left on the host before")

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Look at the start, whenever a lease is given up, and now and then, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(watcher))
            while True:
                await self._collect()
                with suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL):
                        await self._look.wait()
                self._look.clear()

    async def _follow(self, watcher: DirectoryWatcher) -> None:
        async for change in watcher.follow(self._directory, contents=False):
            given_up = change.kind is Kind.VANISHED and change.name.endswith(LEASE_ENDING)
            if given_up or change.kind is Kind.RESCAN:
                self._look.set()

    async def _collect(self) -> None:
        try:
            await self._offload.run(self.collect, limit=LIMIT)
        except OSError as error:
            self._failing.failed(os_problem(error))
        except StuckError as error:
            self._failing.failed(str(error))
        else:
            self._failing.recovered()

    def collect(self) -> None:
        """Remove what is nobody's. Blocking. Raises OSError for what cannot be removed."""
        unreadable: list[str] = []
        left = tuple(records(self._directory, lambda path, reason: unreadable.append(f"{path}: {reason}")))
        if unreadable:
            self._unreadable.failed("; ".join(unreadable))
        else:
            self._unreadable.recovered()
        try_each(left, lambda one: self._collect_one(*one))

    def _collect_one(self, path: Path, record: Record) -> None:
        if self._is_wanted(record):
            return
        lease = path.with_name(path.name.removesuffix(RECORD_ENDING) + LEASE_ENDING)
        file = os.open(lease, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(file, lease):
                # Given up since it was opened: by now another may hold a new one.
                return
            # As it is now that nobody else can change it.
            if not self._is_wanted(record):
                self._remove(path, record)
            lease.unlink(missing_ok=True)
        except BlockingIOError:
            return
        finally:
            os.close(file)

    def _is_wanted(self, record: Record) -> bool:
        """Also a member of a family that there is: its devices may only be late."""
        plans = self._wanted()
        families = {plan.family.text for plan in plans if plan.family is not None}
        return record.resource in {plan.name for plan in plans} or record.family in families

    def _remove(self, path: Path, record: Record) -> None:
        belongings = Belongings(path, record.resource, record.family)
        discard_specification(self._host, belongings)
        SideFiles(self._host, belongings, self._clock).remove_all()
        _log.info("removed what was left of a resource", resource=record.resource)
