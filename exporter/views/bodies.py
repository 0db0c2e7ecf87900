"""The bodies of /api/v1/devices and /api/v1/pods without filters, in blocks. Pure.

A refresh changes few devices. The blocks of the others are kept, as text and compressed, so that a body costs
the encoding and compressing of what changed. The members that every document begins with are made for each
answer: they hold the age of the mapping.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from exporter.mapping.device_status import DeviceStatus, DeviceStatuses
from exporter.mapping.model import PodKey
from exporter.mapping.pod_status import PodStatus, pod_statuses
from exporter.mapping.state import Moment, State
from exporter.views.documents import device_entry, envelope, pod_entry
from exporter.views.encoding import LIST_END, list_head, list_items
from exporter.views.schema import DevicesDocument, ListEnvelope, PodsDocument
from runtime.blocks import CHUNK, Block, BlockCache, block, gzip_pieces, joined, runs

T = TypeVar("T")

LATELY: Final = 60.0
"""Seconds after a request for a list in which each refresh makes its next body."""
KEPT_BYTES: Final = 16 << 20
"""Bytes of text above which a body is made for each answer and not kept: that of 50 000 devices."""
_RUN: Final = CHUNK // 4
"""Pods of a run, about: a pod has more text than a device."""

_END: Final = block(LIST_END)


class ListBody(Struct, frozen=True, eq=False):
    """Every item of a list, of the state with `statuses`: as `texts`, and `deflated` in one block."""

    empty: Callable[[Moment], ListEnvelope]
    statuses: DeviceStatuses | None
    texts: tuple[bytes, ...]
    deflated: Block

    def text(self, moment: Moment) -> tuple[bytes, ...]:
        """The document at `moment` in pieces, all but the first shared."""
        return (list_head(self.empty(moment)), *self.texts, LIST_END)

    def gzipped(self, moment: Moment) -> tuple[bytes, ...]:
        """The same as one gzip member."""
        return gzip_pieces((block(list_head(self.empty(moment))), self.deflated, _END))


class WholeList(Generic[T]):
    """One list: the body of the last state that was asked for, and its blocks."""

    def __init__(
        self,
        empty: Callable[[Moment], ListEnvelope],
        groups: Callable[[State], Iterable[tuple[Hashable, Sequence[T]]]],
        entry: Callable[[T], msgspec.Struct],
    ) -> None:
        """`empty` makes the document without items, `groups` the items as BlockCache takes them."""
        self._empty = empty
        self._groups = groups
        self._blocks = BlockCache[T](lambda items: list_items([entry(one) for one in items]))
        self._last: ListBody | None = None

    def ready(self, state: State) -> ListBody | None:
        """The body of `state`, if it was made."""
        last = self._last
        return last if last is not None and last.statuses is state.statuses else None

    def made(self, state: State) -> ListBody:
        """The body of `state`. May run in any thread: two at once do the same work twice."""
        last = self.ready(state)
        if last is not None:
            return last
        blocks = self._blocks.of(self._groups(state))
        if blocks:
            blocks[0] = block(blocks[0].text[1:])  # no comma before the first item
        texts = tuple([one.text for one in blocks])
        body = ListBody(self._empty, state.statuses, texts, joined(blocks))
        if body.deflated.size > KEPT_BYTES:
            self.forget()
        else:
            self._last = body
        return body

    def forget(self) -> None:
        """Free the memory."""
        self._last = None
        self._blocks.clear()


class ListBodies:
    """The bodies of the lists that are made in blocks. After each refresh `prepare` makes those that were
    asked for lately, before the new state is published.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._pods: dict[PodKey, PodStatus] = {}
        self._lists: dict[str, WholeList[Any]] = {
            "devices": WholeList[DeviceStatus](_no_devices, _by_resource, device_entry),
            "pods": WholeList[PodStatus](_no_pods, self._by_run, pod_entry),
        }
        self._asked: dict[str, float] = {}

    def find(self, name: str) -> WholeList[Any] | None:
        """The list at /api/v1/`name`, which a client asks for now; None where it is not in blocks."""
        found = self._lists.get(name)
        if found is not None:
            self._asked[name] = self._clock()
        return found

    def prepare(self, state: State) -> None:
        """Make the bodies of `state`, which is published next."""
        for name, asked in list(self._asked.items()):
            if self._clock() - asked <= LATELY:
                self._lists[name].made(state)
            else:
                self._asked.pop(name, None)
                self._lists[name].forget()
        if not self._asked:
            self._pods = {}

    def _by_run(self, state: State) -> list[tuple[tuple[str, ...], Sequence[PodStatus]]]:
        """The pods in runs."""
        # Kept in a variable: another thread may make the pods of another state meanwhile.
        pods = self._pods = pod_statuses(state, self._pods)
        return runs(tuple(pods.values()), lambda pod: pod.key, _RUN)


def _no_devices(moment: Moment) -> ListEnvelope:
    return DevicesDocument(**envelope(moment), devices=())


def _no_pods(moment: Moment) -> ListEnvelope:
    return PodsDocument(**envelope(moment), pods=())


def _by_resource(state: State) -> Iterator[tuple[str, list[DeviceStatus]]]:
    for resource, group in groupby(state.devices, key=lambda one: one.device.key.resource):
        yield resource, list(group)
