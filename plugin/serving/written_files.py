"""A resource's CDI specification on the host: written when it changes, there before Allocate names it.

It stays when the process ends: a running pod's containers are restarted by it.

Files written for a container at Allocate, there for as long as a pod may hold the devices.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from plugin.config.plan import CdiPlan
from plugin.devices import cdi
from plugin.devices.cdi import Edits
from plugin.devices.claims import CdiNames
from plugin.devices.device import Device
from plugin.devices.inventory import RELEASE_AFTER
from plugin.devices.rendering import File, RenderError
from plugin.discovery import host
from plugin.discovery.host import HostRoot
from plugin.names import natural
from plugin.serving.answer import fit_edits
from plugin.serving.records import Belongings, FileRecord, try_each
from runtime.clock import Clock
from runtime.config_file import quoted

MODE = 0o644


@dataclass(frozen=True, slots=True)
class _Entry:
    """One device as it was rendered: `edits` with optional things, `fitted` without those not there."""

    device: Device
    name: str
    edits: Edits
    fitted: Edits


class CdiFile:
    """The specification of one resource. Blocking; methods may raise OSError."""

    def __init__(
        self, plan: CdiPlan, resource: str, host: HostRoot, belongings: Belongings, names: CdiNames
    ) -> None:
        """`names`: those of all resources."""
        self._all_names = names
        self._plan = plan
        self._resource = resource
        self._host = host
        self._belongings = belongings
        self._entries: dict[str, _Entry] = {}
        self._common = Edits()
        self._names: frozenset[str] = frozenset()
        self._seen: tuple[int, int, int] | None = None
        self.path = f"{plan.directory.rstrip('/')}/{cdi.file_name(plan.kind, resource)}"

    def update(self, devices: Iterable[Device]) -> tuple[str, ...]:
        """Bring the file to these devices; returns why some are not in it."""
        problems: list[str] = []
        with self._belongings.guard:
            entries: dict[str, _Entry] = {}
            for device in devices:
                try:
                    entries[device.id] = self._entry(device)
                except RenderError as error:
                    problems.append(f"{quoted(device.id)}: {error}")
            owners: dict[str, str] = {}
            for device_id in sorted(entries, key=natural):
                name = entries[device_id].name
                if owners.setdefault(name, device_id) != device_id:
                    problems.append(f"{quoted(device_id)}: its name {quoted(name)} is that of {owners[name]}")
                    del entries[device_id]
            taken = self._all_names.claim(self._resource, [self._qualified(e) for e in entries.values()])
            for device_id, entry in list(entries.items()) if taken else ():
                if self._qualified(entry) in taken:
                    problems.append(f"{quoted(device_id)}: {self._taken_by(entry, taken)}")
                    del entries[device_id]
            self._bring(entries)
        return tuple(problems)

    def ensure(self, devices: Sequence[Device]) -> frozenset[str]:
        """See that the file has these devices as they are now; the CDI names that it has.

        Raises RenderError, also for a device whose name another one has, of this resource or another.
        """
        with self._belongings.guard:
            changed = {
                e.device.id: e for e in map(self._entry, devices) if self._entries.get(e.device.id) != e
            }
            owners = {entry.name: i for i, entry in self._entries.items()} if changed else {}
            for device_id, entry in changed.items():
                if owners.setdefault(entry.name, device_id) != device_id:
                    raise RenderError(f"cdi.name: {quoted(entry.name)} is that of {owners[entry.name]}")
            taken = self._all_names.taken(self._resource, [self._qualified(e) for e in changed.values()])
            for entry in changed.values():
                if self._qualified(entry) in taken:
                    raise RenderError(f"cdi.name: {self._taken_by(entry, taken)}")
            self._bring({**self._entries, **changed} if changed else self._entries)
            return self._names

    def edits(self, devices: Sequence[Device]) -> tuple[Edits, ...]:
        """What the runtime will add for these devices, which `ensure` was asked for."""
        with self._belongings.guard:
            return (self._common, *(self._entries[device.id].edits for device in devices))

    def _qualified(self, entry: _Entry) -> str:
        return cdi.qualified(self._plan.kind, entry.name)

    def _taken_by(self, entry: _Entry, taken: Mapping[str, str]) -> str:
        name = self._qualified(entry)
        return f"{quoted(name)} is in the specification of {taken[name]}, and no runtime takes it from two"

    def _entry(self, device: Device) -> _Entry:
        known = self._entries.get(device.id)
        if known is None or known.device != device:
            name = cdi.name_of(self._plan, self._resource, device)
            edits = cdi.edits_of(self._plan, self._resource, device)
        else:
            name, edits = known.name, known.edits
        fitted = fit_edits(self._host, edits)
        if known is not None and known.device == device and known.fitted == fitted:
            return known
        return _Entry(device, name, edits, fitted)

    def _bring(self, entries: dict[str, _Entry]) -> None:
        common = fit_edits(self._host, cdi.common_edits(self._plan, self._resource))
        if (
            (entries is self._entries or entries == self._entries)
            and common == self._common
            and self._is_there()
        ):
            return
        ordered = [entries[i] for i in sorted(entries, key=natural)]
        devices = {entry.name: entry.fitted for entry in ordered}
        content = cdi.document(self._plan.kind, devices, common)
        left = self._belongings.record.cdi
        if left and left != self.path:
            host.remove(self._host, left)
            self._belongings.put(cdi="")
        if content is None:
            if self._belongings.record.cdi:
                host.remove(self._host, self.path)
                self._belongings.put(cdi="")
        else:
            self._belongings.put(cdi=self.path)
            if host.read(self._host, self.path) != (content, MODE):
                host.write(self._host, self.path, content, MODE)
        self._seen = self._status()
        self._entries, self._common = entries, common
        self._names = frozenset(cdi.qualified(self._plan.kind, n) for n in cdi.listed(devices, common))

    def _is_there(self) -> bool:
        return self._seen == self._status()

    def _status(self) -> tuple[int, int, int] | None:
        try:
            status = self._host.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


KEPT_FOR: Final = RELEASE_AFTER
"""Seconds for which a file stays at least: Allocate answers before the kubelet tells who holds what."""


class SideFiles:
    """The files of one resource, by what is remembered of them. Blocking; every method may raise OSError."""

    def __init__(self, host: HostRoot, belongings: Belongings, clock: Clock) -> None:
        self._host = host
        self._belongings = belongings
        self._clock = clock
        self._begun = clock.monotonic()
        self._named: dict[str, float] = {}

    def any(self) -> bool:
        """Whether there is any."""
        return bool(self._belongings.record.files)

    def write(self, files: Sequence[File], owners: Mapping[str, str]) -> None:
        """Write what a container needs; `owners`: its devices' ids, by the ids it was given for them."""
        if not files:
            return
        with self._belongings.guard:
            known = dict(self._belongings.record.files)
            for file in files:
                before = known.get(file.host)
                ids = (i for i, device in owners.items() if file.device in {"", device})
                holders = {*ids, *(before.ids if before is not None else ())}
                made = before.made if before is not None else ()
                known[file.host] = FileRecord(file.content, file.mode, tuple(sorted(holders)), made)
            self._belongings.put(files=known)
            for file in files:
                self._named[file.host] = self._clock.monotonic()
                self._bring(file.host, known[file.host])

    def restore(self) -> None:
        """Write anew what is not there any more: after a reboot /run is empty, and pods start again."""
        with self._belongings.guard:
            files = self._belongings.record.files
            try_each(files, lambda path: self._bring(path, files[path]))

    def release(self, held: Collection[str]) -> tuple[str, ...]:
        """Remove the files of devices that nobody holds; `held`: every id that is held."""
        now = self._clock.monotonic()
        with self._belongings.guard:
            gone = tuple(
                path
                for path, record in self._belongings.record.files.items()
                if now - self._named.get(path, self._begun) >= KEPT_FOR and not set(record.ids) & set(held)
            )
            self._remove(gone)
        return gone

    def remove_all(self) -> None:
        """Remove every file: the resource is no more."""
        with self._belongings.guard:
            self._remove(tuple(self._belongings.record.files))

    def _remove(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        known = dict(self._belongings.record.files)

        def remove(path: str) -> None:
            host.remove(self._host, path, known[path].made)
            del known[path]
            self._named.pop(path, None)

        try:
            try_each(paths, remove)
        finally:
            self._belongings.put(files=known)

    def _bring(self, path: str, record: FileRecord) -> None:
        content = record.content.encode()
        if host.read(self._host, path) == (content, record.mode):
            return
        made = host.write(self._host, path, content, record.mode)
        if made:
            files = self._belongings.record.files
            whole = msgspec.structs.replace(record, made=tuple(dict.fromkeys((*record.made, *made))))
            self._belongings.put(files={**files, path: whole})
