"""Rows of history's tables as values, and back. Pure. Values that are read are checked: the file may be
damaged.

A time in `holdings` is a number of ticks. A tick is the last bit of a float of this century's unix times, so
no time is rounded. `slot` is the earliest possible start of a row with its class of length in the bits above:
an index on it finds the rows of a class that began in a range. The other times are the ticks from there
(`started`, `lasted`), and the ticks that the end is uncertain (`ending`).
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from exporter.history.coverage import CoveredSpan, GapReason
from exporter.history.devices import DeviceRow, RecordedDevice
from exporter.history.query import span_of
from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow, bounded
from exporter.mapping.model import DeviceKey

TICKS: Final = 1 << 22
"""Ticks of a second."""
LOW_BITS: Final = 54
LATEST: Final = (1 << LOW_BITS) - 1
"""The latest time of a slot, in ticks: the year 2106."""

_CERTAINTIES: Final = (
    *(Certainty.AT_ONCE, Certainty.BETWEEN_POLLS, Certainty.WHILE_SILENT),
    *(Certainty.WHILE_DOWN, Certainty.HELD_ALREADY, Certainty.IN_DOUBT),
)
"""By their number in the file."""
_CERTAIN: Final = tuple(
    (start, end, assumed) for start in _CERTAINTIES for end in _CERTAINTIES for assumed in (False, True)
)
"""The certainty of the start and of the end, and `assumed`: by their number in the file."""

Encode = Callable[[str], int | str]
Decode = Callable[[object], str]


class DamagedError(Exception):
    """The file is damaged; the message says what was found."""


def read_text(raw: bytes) -> str:
    """Decode text. Damaged text is shown as it is, instead of failing the whole answer."""
    return raw.decode(errors="replace")


def optional(value: object) -> float | None:
    """A time, or None. Raises DamagedError."""
    return None if value is None else real(value)


def real(value: object) -> float:
    """A time. Raises DamagedError."""
    if isinstance(value, float | int) and math.isfinite(value):
        return float(value)
    raise DamagedError(f"found {type(value).__name__}, expected a time")


def ticks(seconds: float) -> int:
    """The ticks of a time, within those of a slot."""
    return math.floor(min(max(seconds * TICKS, 0), LATEST))


def present_values(row: HoldingRow) -> tuple[object, ...]:
    """The values of PRESENT_COLUMNS."""
    end = row.end or row.missed
    bounds = (*_bound(row.start), *(_bound(end) if end is not None else (None, None, None)))
    return (row.id, *row.key, *row.facts, *bounds, int(row.assumed), row.low)


def _bound(bound: Bound) -> tuple[float | None, float | None, str]:
    return bound.not_before, bound.not_after, bound.certainty.value


def read_present(values: Sequence[object]) -> HoldingRow:
    """A row of PRESENT_COLUMNS. Raises DamagedError."""
    return _read_row(values, _NAMES, lambda texts: (HoldingKey(*texts[:5]), HoldingFacts(*texts[5:])))


def read_former(values: Sequence[object]) -> HoldingRow:
    """A row of FORMER_COLUMNS or PAST_COLUMNS. Raises DamagedError."""
    return _read_row(values, _FORMER_NAMES, _former)


_Names = tuple[HoldingKey, HoldingFacts]
_NAMES: Final = len(HoldingKey._fields) + len(HoldingFacts._fields)
_FORMER_NAMES: Final = 15


def _former(texts: Sequence[str]) -> _Names:
    resource, driver, pool, device, share_id, claim_namespace, claim, *others = texts
    namespace, pod, container, uid, kind, workload, parent, node = others
    if driver:
        resource, device = driver, claimed_name(pool, device, node)
    facts = HoldingFacts(uid, kind, workload, parent, node, claim_namespace, claim, share_id)
    return HoldingKey(resource, device, namespace, pod, container), facts


def claimed_name(pool: str, device: str, node: str) -> str:
    """The name of a claimed device on its node (exporter.mapping.claimed_devices)."""
    return device if pool == node else bounded(f"{pool}/{device}")


def _read_row(
    values: Sequence[object], number: int, read_names: Callable[[Sequence[str]], _Names]
) -> HoldingRow:
    """A row of an id, `number` names, bounds, `assumed`, `low`, and of a row that ended a `span`."""
    try:
        texts, rest = [_string(value) for value in values[1 : number + 1]], values[number + 1 :]
        key, facts = read_names(texts)
        end = None if rest[5] is None else _read_bound(rest[3:6])
        over = len(rest) > 8 and rest[8] is not None
        return HoldingRow(
            id=int(str(values[0])),
            key=key,
            facts=facts,
            start=_read_bound(rest[:3]),
            end=end if over else None,
            missed=None if over else end,
            assumed=bool(rest[6]),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise DamagedError(f"a row is invalid: {error}") from error


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"found {type(value).__name__}, expected text")


def _read_bound(values: Sequence[object]) -> Bound:
    first, last, certainty = values
    return Bound(optional(first), optional(last), Certainty(_string(certainty)))


def span(row: HoldingRow) -> int:
    """The class of length of a row that ended."""
    return span_of(row.high - row.low)


def holding_values(row: HoldingRow, holder: int, encode: Encode) -> tuple[object, ...]:
    """The values of HOLDING_COLUMNS."""
    end = row.end
    if end is None:
        raise ValueError(f"row {row.id} has not ended")
    key, low = row.key, ticks(row.low)
    last = low if end.not_after is None else ticks(end.not_after)
    first = None if end.not_before is None else last - ticks(end.not_before)
    begun = None if row.start.not_before is None else ticks(row.start.not_after or 0.0) - low
    names = (key.resource, row.facts.requested_as, "", key.device, row.facts.parent, key.namespace)
    return (
        *(row.id, span(row) << LOW_BITS | low, begun, last - low, first),
        _CERTAIN.index((row.start.certainty, end.certainty, row.assumed)),
        *map(encode, names),
        _claim(row),
        holder,
    )


def holder_values(row: HoldingRow, encode: Encode) -> tuple[object, ...]:
    """The values of HOLDER_COLUMNS. A workload whose name begins the pod's is the length of its name."""
    pod, facts = row.key.pod, row.facts
    workload = len(facts.workload) if pod.startswith(facts.workload) else facts.workload
    names = (row.key.container, facts.workload_kind, facts.node)
    container, kind, node = map(encode, names)
    return pod, uid_value(facts.uid), container, kind, workload, node


_UID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def uid_value(uid: str) -> str | bytes:
    """A uid, packed if it is a UUID."""
    return bytes.fromhex(uid.replace("-", "")) if _UID.fullmatch(uid) else uid


def _read_uid(value: Any) -> str:
    if isinstance(value, str):
        return value
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _claim(row: HoldingRow) -> str:
    """The claim, without what begins as the name of the pod, and without a namespace that is the pod's."""
    key, facts = row.key, row.facts
    if not (facts.claim or facts.claim_namespace or facts.share_id):
        return ""
    pod = len(key.pod) if facts.claim.startswith(key.pod) else 0
    namespace = None if facts.claim_namespace == key.namespace else facts.claim_namespace
    parts = [pod, facts.claim[pod:], namespace, facts.share_id]
    return json.dumps(parts[:2] if namespace is None and not facts.share_id else parts, ensure_ascii=False)


def claim_begins(claim: str) -> tuple[str, str]:
    """How a row's claim begins if its name does not begin as the pod's."""
    begins = json.dumps([0, claim], ensure_ascii=False)
    return begins, f"{begins[:-1]},"


def read_holding(values: Sequence[Any], decode: Decode) -> HoldingRow:
    """A row of HOLDING_COLUMNS and HOLDER_COLUMNS. Raises DamagedError."""
    number, slot, begun, lasted, ending, certain, resource, asked, pool, device, parent, namespace = values[
        :12
    ]
    claim, _, name, uid, container, kind, workload, node = values[12:]
    try:
        low = slot & LATEST
        last = low + lasted
        start, end, assumed = _CERTAIN[certain]
        pod, space = _string(name), decode(namespace)
        through = _read_claim(claim, pod, space) if claim else ("", "", "")
        pool, asked, on = decode(pool), decode(asked), decode(node)
        key = HoldingKey(decode(resource), decode(device), space, pod, decode(container))
        if pool:
            key, asked = key._replace(resource=asked, device=claimed_name(pool, key.device, on)), ""
        if not isinstance(workload, str):
            workload = pod[:workload]
        facts = HoldingFacts(_read_uid(uid), decode(kind), workload, decode(parent), on, *through, asked)
        return HoldingRow(
            number,
            key,
            facts,
            Bound(None if begun is None else low / TICKS, (low + (begun or 0)) / TICKS, start),
            Bound(None if ending is None else (last - ending) / TICKS, last / TICKS, end),
            None,
            assumed,
            pool,
        )
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise DamagedError(f"a row is invalid: {error}") from error


def _read_claim(text: str, pod: str, namespace: str) -> tuple[str, str, str]:
    """The claim's namespace, its name, and the share's id."""
    begins, rest, *others = json.loads(text)
    other, share_id = others or (None, "")
    claim_namespace = namespace if other is None else _string(other)
    return claim_namespace, pod[:begins] + _string(rest), _string(share_id)


def device_values(row: DeviceRow, encode: Encode) -> tuple[object, ...]:
    """The values of DEVICE_COLUMNS."""
    names = (*row.key, row.facts.parent)
    healthy = None if row.facts.healthy is None else int(row.facts.healthy)
    return (row.id, *map(encode, names), healthy, row.low, row.since, row.until, row.high)


def read_device(values: Sequence[object], decode: Decode) -> DeviceRow:
    """A row of DEVICE_COLUMNS. Raises DamagedError."""
    number, resource, device, parent, healthy, low, since, until, high = values
    try:
        key = DeviceKey(decode(resource), decode(device))
        facts = RecordedDevice(decode(parent), None if healthy is None else bool(healthy))
        return DeviceRow(
            int(str(number)), key, facts, real(low), real(since), optional(until), optional(high)
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a row of a device is invalid: {error}") from error


def read_span(values: Sequence[object]) -> CoveredSpan:
    """A covered span. Raises DamagedError."""
    number, since, until, gap = values
    try:
        return CoveredSpan(
            int(str(number)), real(since), real(until), None if gap is None else GapReason(_string(gap))
        )
    except (TypeError, ValueError) as error:
        raise DamagedError(f"a covered span is invalid: {error}") from error
