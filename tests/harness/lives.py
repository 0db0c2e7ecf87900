"""Exporters' histories, without exporters: looks that follow one another, and the archive they go to."""

from dataclasses import dataclass, field
from pathlib import Path

from exporter.history.archive import Archive, HistoryLimits, QueryMoment
from exporter.history.coverage import PollRecord, PollSequence, PollTimes
from exporter.history.devices import RECORDED, KnownDevices, RecordedDevice
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import HoldingFacts, HoldingKey, Present
from exporter.mapping.model import DeviceKey
from runtime.clock import Clock

PATIENCE = 16.0


def key(device: str = "gpu-0", pod: str = "p", resource: str = "example.com/gpu") -> HoldingKey:
    """A holding's name."""
    return HoldingKey(resource, device, "ns", pod, "main")


@dataclass
class Life:
    """An exporter's history: looks that follow one another, and the archive that they go to.

    `known` are the devices of example.com/gpu that the kubelet knows, and whether each is healthy (None:
    unknown); None: it does not report them. `held_only`: only held devices are known now.
    """

    path: Path | None
    limits: HistoryLimits = field(default_factory=lambda: HistoryLimits(30 * 86400.0, 64 << 20))
    pending_limit: int = 4096
    wall: float = 1_800_000_000.0
    steady: float = 5000.0
    known: dict[str, bool | None] | None = field(default_factory=dict[str, bool | None])
    held_only: bool = False

    @property
    def recorded(self) -> KnownDevices:
        """What a look records of the devices."""
        if self.known is None:
            return {}
        if self.held_only:
            return {
                RECORDED: RecordedDevice("", healthy=True),
                DeviceKey("example.com/gpu", ""): RecordedDevice("", healthy=None),
            }
        devices = {DeviceKey("example.com/gpu", name): healthy for name, healthy in self.known.items()}
        if devices and set(devices.values()) == {False}:
            devices[DeviceKey("example.com/gpu", "")] = False
        facts = {key: RecordedDevice("", healthy) for key, healthy in devices.items()}
        return {RECORDED: RecordedDevice("", healthy=True)} | facts

    def start(self) -> "Life":
        """A new process."""
        self.sight = PollSequence(PATIENCE)
        self.archive = Archive(
            self.path,
            self.limits,
            doubt=10.0,
            clock=Clock(lambda: self.wall, lambda: self.steady),
            pending_limit=self.pending_limit,
            retry=5.0,
        )
        self.archive.open()
        return self

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.wall += seconds
        self.steady += seconds

    def look(
        self, *keys: HoldingKey, after: float = 5.0, uid: str = "", facts: HoldingFacts | None = None
    ) -> PollRecord:
        """Look so many seconds later, and see `keys` held, by pods of `uid` or of all `facts`."""
        return self.see({name: (facts or HoldingFacts(uid),) for name in keys}, after=after)

    def see(self, found: Present, *, after: float = 5.0) -> PollRecord:
        """Look so many seconds later, and see what is `found`."""
        self.pass_time(after)
        times = PollTimes(self.wall, self.wall, self.steady)
        look = self.sight.add(times, found, by_event=False, devices=self.recorded)
        self.archive.take([look], None)
        return look

    @property
    def now(self) -> QueryMoment:
        """The moment of a query."""
        return QueryMoment(self.sight.last, failing=self.sight.failing, time=self.wall, patience=PATIENCE)

    def ask(self, **question: object) -> HistoryResult:
        """Ask history, now."""
        return self.archive.find(HistoryQuery(**question), self.now)  # type: ignore[arg-type] # as given

    def unheld(self, at: float, **question: object) -> dict[str, str]:
        """The devices that nobody held at `at`, and their states."""
        found = self.ask(since=at, until=at, **question).devices
        return {device.key.device: device.state for device in found}

    def devices(self, **question: object) -> list[tuple[str, bool]]:
        """Devices that are found, and whether they have ended."""
        return [(row.key.device, row.end is not None) for row in self.ask(**question).rows]

    def die(self) -> None:
        """Without a word, as by SIGKILL: what is not written is lost, and so is the lock."""
        archive = self.archive
        if archive._store is not None:  # pyright: ignore[reportPrivateUsage]
            archive._store.close()  # pyright: ignore[reportPrivateUsage]
        if archive._file is not None:  # pyright: ignore[reportPrivateUsage]
            archive._file.unlock()  # pyright: ignore[reportPrivateUsage]
