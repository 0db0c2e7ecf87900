"""Whatever a ResourceSlice or a ResourceClaim holds is refused or read within bounds."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.published import NAME_LIMIT, ResourceSlice, content_of, is_name
from exporter.mapping.resource_claims import ResourceClaim, claim_of
from exporter.mapping.slices import PublishedDevices

TEXT = st.text(max_size=20) | st.sampled_from(["node", "1Gi", "0000:3b:00.0", "x" * 9999, "\x1b[2J", "1e400"])
NUMBER = st.integers() | st.sampled_from([-1, 0, 1, 10**300])
VALUE = st.fixed_dictionaries(
    {},
    optional={
        "string": TEXT,
        "int": NUMBER,
        "bool": st.booleans(),
        "version": TEXT,
        "ints": st.lists(NUMBER),
        "strings": st.lists(TEXT),
        "value": TEXT,
    },
)
NAMES = TEXT | st.sampled_from(
    ["uuid", "pciAddress", "model", "numaNode", "parentUUID", "devicelens.dev/resource"]
)
VALUES = st.dictionaries(NAMES, VALUE, max_size=4)
TIMES = TEXT | st.sampled_from(["0001-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z"])
TAINT = st.fixed_dictionaries({}, optional={"key": TEXT, "value": TEXT, "effect": TEXT, "timeAdded": TIMES})
SET = st.fixed_dictionaries({}, optional={"name": TEXT, "counterSet": TEXT, "counters": VALUES})
FACTS: dict[str, st.SearchStrategy[Any]] = {
    "attributes": VALUES,
    "capacity": VALUES,
    "taints": st.lists(TAINT, max_size=3),
    "allowMultipleAllocations": st.booleans(),
    "consumesCounters": st.lists(SET, max_size=3),
}
DEVICE = st.fixed_dictionaries(
    {"name": TEXT}, optional=FACTS | {"basic": st.fixed_dictionaries({}, optional=FACTS)}
)
POOL = st.fixed_dictionaries({"name": TEXT}, optional={"generation": NUMBER, "resourceSliceCount": NUMBER})
SPEC = st.fixed_dictionaries(
    {"driver": TEXT, "pool": POOL, "nodeName": st.just("node")},
    optional={"devices": st.lists(DEVICE, max_size=3), "sharedCounters": st.lists(SET, max_size=3)},
)
SLICE = st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": TEXT}), "spec": SPEC})


@given(st.lists(SLICE, max_size=3))
def test_slices(documents: list[dict[str, Any]]) -> None:
    published = PublishedDevices("node")
    for document in documents:
        try:
            found = content_of(msgspec.convert(document, ResourceSlice))
        except msgspec.ValidationError:
            continue
        if found is not None:
            published.put(found, 0.0)
    for name, device in published.published.items():
        assert all(map(is_name, name))
        assert max(map(len, (device.uuid, device.model, device.resource, device.parent))) <= NAME_LIMIT
    assert published.drivers >= {name.driver for name in published.published} - published.drivers


RESULT = st.fixed_dictionaries(
    {}, optional={"request": TEXT, "driver": TEXT, "pool": TEXT, "device": TEXT, "shareID": TEXT}
)
STATUS = st.fixed_dictionaries(
    {"allocation": st.fixed_dictionaries({"devices": st.fixed_dictionaries({"results": st.lists(RESULT)})})}
)


@given(
    st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": TEXT, "uid": TEXT}), "status": STATUS})
)
def test_claims(document: dict[str, Any]) -> None:
    found = claim_of(msgspec.convert(document, ResourceClaim))
    assert all(is_name(part) for device in found.devices for part in device.name)
    assert len(found.uid) <= NAME_LIMIT
