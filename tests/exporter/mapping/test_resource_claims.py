"""exporter.mapping.resource_claims: what is kept of a ResourceClaim."""

from typing import Any

import msgspec

from exporter.mapping.dra import AllocatedDevice, Claim, ClaimName, PublishedName
from exporter.mapping.resource_claims import ResourceClaim, claim_of
from harness.recordings import RECORDINGS

NAME = "dra-extended-resource-admin-access-and-health.resourceclaims.json"


def _recorded() -> dict[str, Claim]:
    found = msgspec.json.decode((RECORDINGS / NAME).read_bytes(), type=list[ResourceClaim])
    return {claim.name.name: claim for claim in map(claim_of, found)}


def test_recorded_claims() -> None:
    found = _recorded()
    assert found["by-claim-g-84m7g"] == Claim(
        ClaimName("default", "by-claim-g-84m7g"),
        "68d79ade-a715-4a7c-a3d1-22bd1776e3ae",
        (
            AllocatedDevice(
                PublishedName("test-driver.cdi.k8s.io", "bed-node", "device-02"),
                "",
                "r",
                "example",
                admin=False,
            ),
        ),
        frozenset({"e5bb669c-0935-4a15-98f7-397011c2c37d"}),
    )
    admin = [name for name, claim in found.items() if any(one.admin for one in claim.devices)]
    (name,) = admin
    assert len(found[name].devices) == 6
    assert all(claim.devices and claim.reserved_for for claim in found.values())
    # The prioritised list's request is cut at the slash, and its class is that of the subrequest.
    assert {one.device_class for claim in found.values() for one in claim.devices} == {"example"}
    assert not any("/" in one.request for claim in found.values() for one in claim.devices)


def _claim(requests: list[dict[str, Any]], *results: dict[str, Any]) -> Claim:
    return claim_of(
        msgspec.convert(
            {
                "metadata": {"name": "c", "namespace": "n", "uid": "u"},
                "spec": {"devices": {"requests": requests}},
                "status": {"allocation": {"devices": {"results": list(results)}}},
            },
            ResourceClaim,
        )
    )


def _result(request: str, **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": "d", "pool": "p", "device": "x"} | more


def test_the_class_of_a_subrequest() -> None:
    subs = [{"name": "big", "deviceClassName": "large"}, {"name": "small", "deviceClassName": "little"}]
    found = _claim([{"name": "r", "firstAvailable": subs}], _result("r/small", shareID="s-1"))
    (device,) = found.devices
    assert (device.request, device.device_class, device.share_id) == ("r", "little", "s-1")


def test_v1beta1_has_the_class_in_the_request() -> None:
    (device,) = _claim([{"name": "r", "deviceClassName": "old"}], _result("r")).devices
    assert device.device_class == "old"


def test_a_claim_without_an_allocation() -> None:
    found = claim_of(msgspec.convert({"metadata": {"name": "c", "namespace": "n"}}, ResourceClaim))
    assert (found.devices, found.reserved_for) == ((), frozenset())


def test_strange_names_are_left_out_and_counts_are_bounded() -> None:
    found = _claim([], _result("r", device="a\nb"), *[_result("r" * 999)] * 999)
    assert len(found.devices) == 255
    assert len(found.devices[0].request) == 253
