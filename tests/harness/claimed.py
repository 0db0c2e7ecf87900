"""A DRA driver beside a simulated kubelet, and what containers have through claims by the API's objects."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import aiohttp

from harness.truth import Claimed, Owner, device_called
from simulator import SimulatedKubelet
from simulator.apiserver import ApiServer
from simulator.dra_allocation import DeviceName, name_of, published, results
from simulator.dra_claims import named_claims
from simulator.dra_driver import DraDriver, http_api
from simulator.dra_objects import CLAIMS, SLICES, Object
from simulator.model import Phase, Pod


@dataclass
class Dra:
    """A driver, the API server that has its objects, and a kubeconfig that leads there."""

    api: ApiServer
    driver: DraDriver
    kubeconfig: Path


@asynccontextmanager
async def dra(
    kubelet: SimulatedKubelet, directory: Path, name: str, devices: Iterable[Object], *, health: bool = False
) -> AsyncGenerator[Dra]:
    """Serve a driver called `name` with these devices, registered and published."""
    api = ApiServer(kubelet)
    async with api.serve() as url, aiohttp.ClientSession(url) as session:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig(), encoding="utf-8")
        async with DraDriver(
            *(kubelet.root, name, kubelet.node_name, devices),
            api=http_api(session),
            cdi_root=directory / "cdi",
            cdi_name_per_device=True,
            interval=0.2,
            reports_health=health,
        ) as driver:
            await kubelet.wait_until(lambda _: bool(driver.notified), 30.0)
            yield Dra(api, driver, kubeconfig)


class Use(NamedTuple):
    """One claimed device that a container has through a claim. `admin`: which is not holding."""

    owner: Owner
    claimed: Claimed
    requested_as: str
    device_class: str
    admin: bool


def uses(kubelet: SimulatedKubelet) -> list[Use]:
    """What the running containers have through claims, by the objects of the API server alone."""
    return [use for pod in kubelet.pods() if pod.phase is Phase.RUNNING for use in _uses(kubelet, pod)]


def _uses(kubelet: SimulatedKubelet, pod: Pod) -> Iterator[Use]:
    names, namespace = named_claims(pod), pod.spec.namespace
    for container in pod.spec.listed_containers():
        wanted = {(names[ref.name], ref.request): "" for ref in container.claim_refs}
        if pod.extended is not None:
            of_container = [one for one in pod.extended.requests if one.container == container.name]
            wanted |= {(pod.extended.claim, one.request): one.resource for one in of_container}
        for (name, request), extended in wanted.items():
            claim = kubelet.objects.get(CLAIMS, name, namespace)
            assert claim is not None, name
            classes = dict(_classes(claim))
            for one in results(claim):
                if request in {"", one["request"].partition("/")[0]}:
                    driver, pool, device = name_of(one)
                    holder = (namespace, pod.spec.name, container.name)
                    yield Use(
                        Owner(driver, device_called(pool, device, kubelet.node_name), *holder, pod.uid),
                        Claimed(*name_of(one), one.get("shareID", ""), namespace, name, *holder),
                        extended or classes[one["request"]],
                        classes[one["request"]],
                        admin=one.get("adminAccess", False),
                    )


def _classes(claim: Object) -> Iterator[tuple[str, str]]:
    for one in claim["spec"]["devices"]["requests"]:
        if "exactly" in one:
            yield one["name"], one["exactly"]["deviceClassName"]
        for alternative in one.get("firstAvailable", ()):
            yield f"{one['name']}/{alternative['name']}", alternative["deviceClassName"]


def offered(kubelet: SimulatedKubelet) -> dict[tuple[str, str], Object]:
    """The devices of the node's slices, by resource and device."""
    found = published(kubelet.objects.all(SLICES))
    return {_key(kubelet, name): one.document for name, one in found.items()}


def free(kubelet: SimulatedKubelet) -> frozenset[tuple[str, str]]:
    """The offered devices that no claim is given and no taint keeps pods from."""
    given = {
        _key(kubelet, name_of(one))
        for claim in kubelet.objects.all(CLAIMS)
        for one in results(claim)
        if not one.get("adminAccess")
    }
    return frozenset(key for key, one in offered(kubelet).items() if key not in given and not tainted(one))


def tainted(device: Object) -> bool:
    """Whether a taint keeps pods from a device."""
    return any(one["effect"] in {"NoSchedule", "NoExecute"} for one in device.get("taints", ()))


def _key(kubelet: SimulatedKubelet, name: DeviceName) -> tuple[str, str]:
    return name.driver, device_called(name.pool, name.device, kubelet.node_name)
