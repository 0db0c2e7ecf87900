"""Gathers what the sources of DRA facts say into one view, for the refresh loop."""

import asyncio
from collections.abc import Collection

from exporter.dra.claims import ClaimReader
from exporter.dra.slices import SliceWatch
from exporter.mapping.dra import NO_DRA, ClaimName, DraView, SourceStatus
from exporter.mapping.state import State
from exporter.refresh.protocols import CdiSource, NoRequests, RefreshRequests
from runtime.text import named


class DraTracker:
    """The refresh loop's DraSource. `bind` it to the loop, then `run` it as an actor."""

    def __init__(
        self,
        slices: SliceWatch | None = None,
        claims: ClaimReader | None = None,
        cdi: CdiSource | None = None,
        *,
        expected: bool = True,
    ) -> None:
        """None: a source is not used. `expected`: a source was configured explicitly."""
        self._expected = expected
        self._slices = slices
        self._claims = claims
        self._cdi = cdi
        self._parts = [part for part in (slices, claims, cdi) if part is not None]
        self._view: DraView | None = None
        self._requests: RefreshRequests = NoRequests()
        for part in self._parts:
            part.bind(self._changed)

    @property
    def view(self) -> DraView:
        """The present view; the same object until a fact changes."""
        if self._view is None:
            devices = None if self._slices is None else self._slices.devices
            claims, absent = (NO_DRA.claims, NO_DRA.absent) if self._claims is None else self._claims.view
            self._view = DraView(
                published=NO_DRA.published if devices is None else devices.published,
                counters=NO_DRA.counters if devices is None else devices.counters,
                drivers=NO_DRA.drivers if devices is None else devices.drivers,
                claims=claims,
                absent=absent,
                cdi=NO_DRA.cdi if self._cdi is None else self._cdi.devices,
                sources=self._statuses(),
            )
        return self._view

    @property
    def words(self) -> str:
        """The present condition of the sources, for a person."""
        problems = [one.problem for one in self._statuses() if one.problem]
        if problems:
            return named(problems, "; ")
        if self._slices is not None:
            return "ResourceSlices watched at the API server"
        return "CDI specifications followed"

    def notes(self, state: State) -> tuple[str, ...]:
        """What the sources do not know, and why. Nothing on a node without claimed devices, unless a source
        was configured explicitly.
        """
        problems = tuple(one.problem for one in self._statuses() if one.problem)
        concerned = self._expected or any(device.claimed is not None for device in state.snapshot.devices)
        return problems if problems and concerned else ()

    def bind(self, requests: RefreshRequests) -> None:
        """Set the refresh loop."""
        self._requests = requests

    def want(self, names: Collection[ClaimName]) -> None:
        """Pods of this node use these claims, and no others."""
        if self._claims is not None:
            self._claims.want(names)

    async def known(self, names: Collection[ClaimName], within: float) -> None:
        """Return when each of these claims was read or has failed, at the latest after `within` seconds."""
        if self._claims is not None:
            await self._claims.known(names, within)

    async def run(self) -> None:
        """Run the sources until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(part.run())

    def _statuses(self) -> tuple[SourceStatus, ...]:
        return tuple(part.status for part in self._parts)

    def _changed(self) -> None:
        self._view = None
        self._requests.reconsider()
