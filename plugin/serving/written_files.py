"""Files that the plugin writes on the host for containers: side files, CDI specifications, and their record.

They outlive the process, because running containers and their restarts need them. A record beside the
resource's sockets names them; each file is recorded before it is written, so that none is ever forgotten.
"""

import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from plugin.config.plan import CdiPlan
from plugin.devices import cdi
from plugin.devices.cdi import Edits
from plugin.devices.claims import NamesInUse
from plugin.devices.device import Device
from plugin.devices.inventory import RELEASE_AFTER
from plugin.devices.rendering import ContainerNode, File, Mount, RenderError
from plugin.discovery import host as host_access
from plugin.discovery.host import HostRoot
from plugin.names import in_order, top_level
from plugin.serving.sockets import PREFIX, RECORD_ENDING
from runtime.clock import Clock
from runtime.log import Log
from runtime.text import quoted

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
CDI_MODE: Final = 0o644
KEEP_SIDE_FILES: Final = RELEASE_AFTER
"""Seconds that a side file stays at least: Allocate answers before the kubelet reports the holder."""

T = TypeVar("T")
Thing = TypeVar("Thing", ContainerNode, Mount)

_log = Log("host-files")


class FileRecord(msgspec.Struct, frozen=True):
    """One side file. `ids`: the advertised ids that need it; `made`: directories created for it."""

    content: str
    mode: int
    ids: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a resource has on the host, by host path. `family`: the template of its name, if any."""

    version: Literal[1]
    resource: str
    family: str = ""
    cdi: str = ""
    files: dict[str, FileRecord] = {}


class RecordError(Exception):
    """A record cannot be read; the message says where and why."""


def read_record(path: Path) -> Record | None:
    """The record at `path`, None where there is none. Blocking. Raises RecordError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor
            content = stream.read(MAX_RECORD_BYTES + 1)
        return msgspec.json.decode(content, type=Record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: {error}") from error


def record_paths(directory: Path) -> Iterator[Path]:
    """The paths of all records in `directory`."""
    return iter(sorted(directory.glob(f".{PREFIX}*{RECORD_ENDING}")))


class HostRecord:
    """The record of one resource, in memory and on disk. Blocking; callers hold `lock` to change it."""

    def __init__(self, path: Path, resource: str, family: str = "") -> None:
        self.lock = threading.RLock()
        self._path = path
        self._empty = Record(1, resource, family)
        self._record: Record | None = None

    @property
    def record(self) -> Record:
        """The record; an empty one where the file is missing or cannot be read."""
        if self._record is None:
            try:
                self._record = read_record(self._path) or self._empty
            except RecordError as error:
                _log.warn("cannot read the record of files on the host", reason=error)
                self._record = self._empty
        return self._record

    def update(self, *, cdi: str | None = None, files: Mapping[str, FileRecord] | None = None) -> None:
        """Replace parts of the record. Raises OSError; then the files must not be written."""
        new = msgspec.structs.replace(
            self.record,
            resource=self._empty.resource,
            family=self._empty.family,
            cdi=self.record.cdi if cdi is None else cdi,
            files=self.record.files if files is None else dict(files),
        )
        if new == self.record:
            return
        if new == self._empty:
            self._path.unlink(missing_ok=True)
        else:
            _write_record(self._path, msgspec.json.encode(new))
        self._record = new


def _write_record(path: Path, content: bytes) -> None:
    if len(content) > MAX_RECORD_BYTES:
        raise OSError(errno.EFBIG, f"the record of files would exceed {MAX_RECORD_BYTES} bytes", str(path))
    new = path.with_name(f"{path.name}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as stream:  # noqa: PTH123 -- a descriptor
            stream.write(content)
            stream.flush()
            # After a power cut the files are written again from the record.
            os.fsync(file)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def try_each(items: Iterable[T], do: Callable[[T], object]) -> None:
    """Do it for each of `items`. Raises the first OSError once all were tried."""
    first: OSError | None = None
    for item in items:
        try:
            do(item)
        except OSError as error:
            first = first or error
    if first is not None:
        raise first


def present(host: HostRoot, things: Iterable[Thing]) -> tuple[Thing, ...]:
    """`things` without the optional ones that the host does not have."""
    return tuple([thing for thing in things if not thing.optional or host.exists(thing.host)])


def missing_nodes(host: HostRoot, nodes: Iterable[ContainerNode]) -> Iterator[str]:
    """Paths of required device nodes that the host does not have.

    Only below top-level directories that --host-root shows, such as /dev: nothing is known of the others.
    """
    for node in nodes:
        if not node.optional and not host.exists(node.host) and host.exists(top_level(node.host)):
            yield node.host


def present_edits(host: HostRoot, edits: Edits) -> Edits:
    """CDI edits without the optional nodes and mounts that the host does not have."""
    if not any(thing.optional for things in (edits.nodes, edits.mounts) for thing in things):
        return edits
    return replace(edits, nodes=present(host, edits.nodes), mounts=present(host, edits.mounts))


class _CdiEntry(Struct, frozen=True):
    """One device of a specification: its `edits` as rendered, and those of them that are `present`."""

    device: Device
    name: str
    edits: Edits
    present: Edits


class CdiSpecification:
    """The CDI specification of one resource. Blocking; methods may raise OSError.

    The file stays when the process ends, because the runtime reads it at each restart of a container.
    """

    def __init__(
        self, plan: CdiPlan, resource: str, host: HostRoot, record: HostRecord, names: NamesInUse
    ) -> None:
        """`names`: the CDI names of all resources."""
        self._all_names = names
        self._plan = plan
        self._resource = resource
        self._host = host
        self._record = record
        self._entries: dict[str, _CdiEntry] = {}
        self._common = Edits()
        self._names: frozenset[str] = frozenset()
        self._written: tuple[int, int, int] | None = None
        self.path = f"{plan.directory.rstrip('/')}/{cdi.file_name(plan.kind, resource)}"

    def update(self, devices: Iterable[Device]) -> tuple[str, ...]:
        """Write the specification for `devices`; returns why some are left out."""
        problems: list[str] = []
        with self._record.lock:
            entries: dict[str, _CdiEntry] = {}
            for device in devices:
                try:
                    entries[device.id] = self._entry(device)
                except RenderError as error:
                    problems.append(f"{quoted(device.id)}: {error}")
            owners: dict[str, str] = {}
            for device_id in in_order(entries):
                name = entries[device_id].name
                if owners.setdefault(name, device_id) != device_id:
                    problems.append(f"{quoted(device_id)}: its name {quoted(name)} is that of {owners[name]}")
                    del entries[device_id]
            shared = self._all_names.replace(self._resource, [self._qualified(e) for e in entries.values()])
            taken = self._of_earlier(shared)
            for device_id, entry in list(entries.items()) if taken else ():
                if self._qualified(entry) in taken:
                    problems.append(f"{quoted(device_id)}: {self._taken_by(entry, taken)}")
                    del entries[device_id]
            self._write(entries)
        return tuple(problems)

    def ensure(self, devices: Sequence[Device]) -> tuple[frozenset[str], tuple[Edits, ...]]:
        """Write these devices as they are now. Returns all names in the specification, and the edits that
        the runtime applies for these devices.

        Raises RenderError, also for a device whose name another device or resource has.
        """
        with self._record.lock:
            changed = {
                e.device.id: e for e in map(self._entry, devices) if self._entries.get(e.device.id) != e
            }
            owners = {entry.name: i for i, entry in self._entries.items()} if changed else {}
            for device_id, entry in changed.items():
                if owners.setdefault(entry.name, device_id) != device_id:
                    raise RenderError(f"cdi.name: {quoted(entry.name)} is that of {owners[entry.name]}")
            shared = self._all_names.shared(self._resource, [self._qualified(e) for e in changed.values()])
            taken = self._of_earlier(shared)
            for entry in changed.values():
                if self._qualified(entry) in taken:
                    raise RenderError(f"cdi.name: {self._taken_by(entry, taken)}")
            self._write({**self._entries, **changed} if changed else self._entries)
            return self._names, (self._common, *(self._entries[device.id].edits for device in devices))

    def _of_earlier(self, shared: Mapping[str, str]) -> Mapping[str, str]:
        """The names of resources that come before this one in alphabetical order: these have them.

        The order does not depend on time: after a restart of this process a pod gets the same devices.
        """
        return {name: other for name, other in shared.items() if other < self._resource}

    def _qualified(self, entry: _CdiEntry) -> str:
        return cdi.qualified(self._plan.kind, entry.name)

    def _taken_by(self, entry: _CdiEntry, taken: Mapping[str, str]) -> str:
        name = self._qualified(entry)
        return f"{quoted(name)} is in the specification of {taken[name]}, and no runtime takes it from two"

    def _entry(self, device: Device) -> _CdiEntry:
        known = self._entries.get(device.id)
        if known is None or known.device != device:
            name = cdi.name_of(self._plan, self._resource, device)
            edits = cdi.edits_of(self._plan, self._resource, device)
            return _CdiEntry(device, name, edits, present_edits(self._host, edits))
        present = present_edits(self._host, known.edits)
        return known if known.present == present else replace(known, present=present)

    def _write(self, entries: dict[str, _CdiEntry]) -> None:
        common = present_edits(self._host, cdi.common_edits(self._plan, self._resource))
        same = entries is self._entries or entries == self._entries
        if same and common == self._common and self._written == self._status():
            return
        devices = {entries[i].name: entries[i].present for i in in_order(entries)}
        content = cdi.document(self._plan.kind, devices, common)
        recorded = self._record.record.cdi
        if recorded and (content is None or recorded != self.path):
            host_access.remove(self._host, recorded)
            self._record.update(cdi="")
        if content is not None:
            self._record.update(cdi=self.path)
            if host_access.read(self._host, self.path) != (content, CDI_MODE):
                host_access.write(self._host, self.path, content, CDI_MODE)
        self._written = self._status()
        self._entries, self._common = entries, common
        self._names = frozenset(cdi.qualified(self._plan.kind, n) for n in cdi.listed(devices, common))

    def _status(self) -> tuple[int, int, int] | None:
        try:
            status = self._host.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


def remove_specification(host: HostRoot, record: HostRecord) -> None:
    """Remove the recorded CDI specification, if any. Blocking. Raises OSError."""
    with record.lock:
        if record.record.cdi:
            host_access.remove(host, record.record.cdi)
            record.update(cdi="")


class SideFiles:
    """The side files of one resource: written at Allocate, kept while a pod may hold their devices.

    Blocking; every method may raise OSError.
    """

    def __init__(self, host: HostRoot, record: HostRecord, clock: Clock) -> None:
        self._host = host
        self._record = record
        self._clock = clock
        self._started = clock.monotonic()
        self._used: dict[str, float] = {}

    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._record.record.files)

    def write(self, files: Sequence[File], owners: Mapping[str, str]) -> None:
        """Write the files of a container; `owners`: its devices' ids by advertised id."""
        if not files:
            return
        with self._record.lock:
            recorded = dict(self._record.record.files)
            for file in files:
                before = recorded.get(file.host, FileRecord("", 0))
                ids = (i for i, device in owners.items() if file.device in {"", device})
                recorded[file.host] = FileRecord(
                    file.content, file.mode, tuple(sorted({*before.ids, *ids})), before.made
                )
            self._record.update(files=recorded)
            for file in files:
                self._used[file.host] = self._clock.monotonic()
                self._write(file.host, recorded[file.host])

    def restore(self) -> None:
        """Write missing files again: after a reboot /run is empty, and pods restart."""
        with self._record.lock:
            files = self._record.record.files
            try_each(files, lambda path: self._write(path, files[path]))

    def release(self, held: Collection[str], at: float) -> None:
        """Remove the files that no id in `held` needs, unless they were used shortly before `at` or later.

        `at`: monotonic seconds from before `held` was read, so that a later Allocate keeps its files.
        """
        with self._record.lock:
            self._remove(
                path
                for path, record in self._record.record.files.items()
                if at - self._used.get(path, self._started) >= KEEP_SIDE_FILES
                and not set(record.ids) & set(held)
            )

    def remove_all(self) -> None:
        """Remove every file."""
        with self._record.lock:
            self._remove(self._record.record.files)

    def _remove(self, paths: Iterable[str]) -> None:
        recorded = dict(self._record.record.files)

        def remove(path: str) -> None:
            host_access.remove(self._host, path, recorded[path].made)
            del recorded[path]
            self._used.pop(path, None)

        try:
            try_each(tuple(paths), remove)
        finally:
            self._record.update(files=recorded)

    def _write(self, path: str, record: FileRecord) -> None:
        content = record.content.encode()
        if host_access.read(self._host, path) == (content, record.mode):
            return
        made = host_access.write(self._host, path, content, record.mode)
        if made:
            whole = msgspec.structs.replace(record, made=tuple(dict.fromkeys((*record.made, *made))))
            self._record.update(files={**self._record.record.files, path: whole})
