"""exporter.mapping.status_anomalies: anomalies of claimed devices, and of devices that are given twice."""

from collections.abc import Sequence
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.anomalies import find
from exporter.mapping.dra import PodClaim, PodDevices, PublishedDevice, PublishedName, ResourceHealth, Taint
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import NO_REPORTS, Anomaly, ClaimHolding, Device, Doubt, Holder
from exporter.mapping.status_anomalies import status_anomalies
from harness import scene
from harness.scene import GPU

P, Q, R = (Holder("ml", pod, "main", f"uid-{pod}") for pod in ("p-0", "q-0", "r-0"))
DRIVER = "gpu.example.com"
UUID = "GPU-0b4f6f0e-6d0c-4f2e-9a55-0e6b8f1d2c30"
TAINT = Taint("gpu.example.com/xid", "79", "NoExecute", 70.0)


def _through(
    holder: Holder, claim: str = "", *, share: str = "", admin: bool | None = False, asked: str = ""
) -> ClaimHolding:
    return ClaimHolding(holder, "ml", claim or f"claim-{holder.pod}", share, "r", asked, admin)


def _claimed(
    *through: ClaimHolding, taints: Sequence[Taint] = (), shareable: bool = False, uuid: str = ""
) -> Device:
    name = PublishedName(DRIVER, "pool-a", "gpu-0")
    published = PublishedDevice(name, uuid=uuid, taints=tuple(taints), shareable=shareable)
    repelled = any(one.repels for one in taints)
    return scene.claimed(
        "gpu-0", *through, published=published, allocatable=not repelled, cdi=["e.com/gpu=1"]
    )


def _found(
    *devices: Device, pods: Sequence[PodIdentity] = (), doubted: Sequence[Holder] = ()
) -> list[Anomaly]:
    snapshot = scene.snapshot(*devices, published=[DRIVER])
    doubts = {one[:2]: Doubt("missing", 1.0, 2.0) for one in doubted}
    snapshot = replace(snapshot, unconfirmed=MappingProxyType(doubts))
    return list(find(snapshot, further=status_anomalies(scene.statuses(snapshot, NO_REPORTS, *pods))))


def _kinds(*devices: Device, doubted: Sequence[Holder] = ()) -> list[tuple[str, str]]:
    found = _found(*devices, doubted=doubted)
    return [(one.kind, "" if one.holder is None else one.holder.pod) for one in found]


BOTH = [("double_held", "p-0"), ("double_held", "q-0")]


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        ([_through(P), _through(Q)], BOTH),
        ([_through(P), _through(Q, admin=True)], []),
        ([_through(P), _through(Q, admin=None)], []),
        ([_through(P, admin=None), _through(Q, admin=None)], []),
        ([_through(P, admin=None, asked="e.com/gpu"), _through(Q)], BOTH),
        ([_through(P, "one"), _through(Q, "one")], []),
        ([_through(P, "one"), _through(P._replace(container="side"), "one")], []),
        ([_through(P, share="s1"), _through(Q, share="s2")], []),
        ([_through(P, share="s1"), _through(Q, share="s1")], BOTH),
        ([_through(P, share="s1"), _through(Q)], BOTH),
        ([_through(P), _through(Q), _through(R, admin=None)], BOTH),
        ([_through(P, "one"), _through(P, "two")], [("double_held", "p-0")]),
    ],
)
def test_claims_that_hold_one_device_without_sharing(
    through: list[ClaimHolding], expected: list[tuple[str, str]]
) -> None:
    assert _kinds(_claimed(*through)) == expected
    assert _kinds(_claimed(*through, shareable=True)) == []


def test_evidence_names_the_claims() -> None:
    first, _ = _found(_claimed(_through(P), _through(Q)))
    assert first.evidence == "2 claims hold it, and it is not shared: ml/claim-p-0, ml/claim-q-0"
    assert (first.devices, first.pods) == (("pool-a/gpu-0",), (("ml", "p-0"), ("ml", "q-0")))


_HOLDINGS = st.builds(
    _through,
    st.sampled_from([P, Q, R]),
    st.sampled_from(["one", "two"]),
    share=st.sampled_from(["", "s1", "s2"]),
    admin=st.sampled_from([None, True, False]),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(_HOLDINGS, max_size=4, unique_by=lambda one: (one.holder, one.claim, one.share_id)))
def test_only_claims_that_are_known_to_hold_are_accused(through: list[ClaimHolding]) -> None:
    accused = {one.holder for one in _found(_claimed(*through)) if one.kind == "double_held"}
    assert accused <= {one.holder for one in through if one.admin is False}
    assert not accused or len({one.claim for one in through if one.admin is False}) > 1


def test_a_taint_that_keeps_pods_away_from_a_held_device() -> None:
    (found,) = _found(_claimed(_through(P), taints=[TAINT, Taint("k", "", "None")]))
    assert (found.kind, found.holder) == ("tainted_held", P)
    what = "it is held but tainted; it has the taint gpu.example.com/xid=79:NoExecute"
    assert found.evidence == f"{what} since 1970-01-01 00:01:10 UTC"
    assert _kinds(_claimed(_through(P, admin=True), taints=[TAINT])) == []
    assert _kinds(_claimed(taints=[TAINT])) == []
    assert _kinds(_claimed(_through(P), taints=[TAINT._replace(effect="None")])) == []
    assert _kinds(_claimed(_through(P), taints=[Taint("k", "", "NoSchedule")])) == [("tainted_held", "p-0")]


def _unhealthy(holder: Holder, name: str, device: str) -> PodIdentity:
    entry = ResourceHealth(holder.container, name, device, "Unhealthy", "XID 79")
    devices = PodDevices((PodClaim("gpu", f"claim-{holder.pod}"),), health=(entry,))
    return PodIdentity(*holder[:2], holder.pod_uid, "Running", devices=devices)


def test_a_device_that_a_status_calls_unhealthy_has_one_anomaly() -> None:
    pods = [_unhealthy(P, "claim:gpu", "e.com/gpu=1"), _unhealthy(Q, GPU, "GPU-1")]
    devices = [_claimed(_through(P), taints=[TAINT]), scene.device("GPU-1", Q)]
    claimed, plain = _found(*devices, pods=pods)
    assert (claimed.kind, claimed.holder) == ("unhealthy_held", P)
    why = "it is held but unhealthy; the status of its pod says why: XID 79"
    assert claimed.evidence == f"{why}; it has the taint gpu.example.com/xid=79:NoExecute"
    assert (plain.kind, plain.holder, plain.evidence) == ("unhealthy_held", Q, why)


def test_a_physical_device_that_a_plugin_and_a_driver_both_give() -> None:
    plain, claimed = scene.device(UUID, P), _claimed(_through(Q), uuid=UUID)
    assert _kinds(plain, claimed) == [("double_held", "q-0"), ("double_held", "p-0")]
    for one in _found(plain, claimed):
        assert one.evidence == (
            "one physical device is given twice: gpu.example.com pool-a/gpu-0 to ml/q-0 by a claim, "
            f"nvidia.com/gpu {UUID} to ml/p-0 by its plugin"
        )
        assert set(one.devices) == {UUID, "pool-a/gpu-0"}
        assert one.device == one.devices[0]


@pytest.mark.parametrize(
    ("plain", "through", "uuid"),
    [
        (scene.device(UUID), [_through(Q)], UUID),
        (scene.device(UUID, P), [], UUID),
        (scene.device(UUID, P), [_through(Q, admin=True)], UUID),
        (scene.device(UUID, P), [_through(Q, admin=None)], UUID),
        (scene.device(UUID, P), [_through(P)], UUID),
        (scene.device(UUID, P), [_through(Q)], UUID.replace("0b", "0c")),
        (scene.device(UUID, P), [_through(Q)], ""),
    ],
    ids=["free", "unclaimed", "admin", "unread claim", "one pod", "another", "unknown"],
)
def test_what_is_not_known_to_be_given_twice(plain: Device, through: list[ClaimHolding], uuid: str) -> None:
    assert _kinds(plain, _claimed(*through, uuid=uuid)) == []


def test_an_unconfirmed_pod_may_have_ended_before_the_other_came() -> None:
    assert _kinds(scene.device(UUID, P), _claimed(_through(Q), uuid=UUID), doubted=[P]) == []


def test_a_resource_of_claims_has_no_plugin_that_may_be_gone() -> None:
    found = _found(_claimed(_through(P), taints=[TAINT]))
    assert [one.kind for one in found] == ["tainted_held"]


def test_a_part_and_the_whole_of_a_claimed_device() -> None:
    whole = _claimed(_through(P))
    for admin, kinds in ((False, [("double_held", "p-0")]), (None, []), (True, [])):
        part = replace(scene.claimed("gpu-0-half", _through(Q, admin=admin)), parent="pool-a/gpu-0")
        assert _kinds(whole, part) == kinds
