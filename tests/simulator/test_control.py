"""The control socket and its client."""

import stat
from collections.abc import AsyncGenerator

import aiohttp
import pytest

from harness.scripted import R, pod, registered
from simulator import Faults, RegistrationFaults, SimulatedKubelet
from simulator.cli import parse_faults
from simulator.control import ControlClient, ControlError
from simulator.control_server import control_server
from simulator.devices import Device, Options
from simulator.model import (
    AdmissionError,
    ClaimDevice,
    ClaimSpec,
    ContainerError,
    ContainerSpec,
    Owner,
    Phase,
    PodSpec,
)


@pytest.fixture
async def client(kubelet: SimulatedKubelet) -> AsyncGenerator[ControlClient]:
    async with control_server(kubelet):
        yield ControlClient(kubelet.root)


async def test_it_does_all_that_the_kubelet_does(kubelet: SimulatedKubelet, client: ControlClient) -> None:
    async with registered(kubelet, R, [Device("a"), Device("b", "Unhealthy")]):
        assert (await client.resources(), await client.capacity(R), await client.allocatable(R)) == (
            (R,),
            2,
            1,
        )
        assert (await client.capacity("example.com/none"), await client.allocatable("example.com/none")) == (
            0,
            0,
        )
        uid = await client.add_pod(pod())
        assert await client.holdings() == kubelet.holdings()
        assert len(kubelet.holdings()) == 1
        assert await client.alloc_response("default", "p", "c", R) == kubelet.alloc_response(
            "default", "p", "c", R
        )
        assert [(p.name, p.uid, p.phase) for p in await client.pods()] == [("p", uid, Phase.RUNNING)]
        await client.restart_container("default", "p", "c")
        await client.restart()
        assert await client.capacity(R) == 0
        await client.complete_pod("default", "p", failed=True)
        assert [p.phase for p in await client.pods()] == [Phase.FAILED]
        await client.delete_pod("default", "p")
        assert (await client.pods(), await client.violations()) == ([], ())
        assert (await client.calls())["Allocate"] == 1


async def test_a_pod_arrives_with_all_that_it_is(kubelet: SimulatedKubelet, client: ControlClient) -> None:
    claim = ClaimSpec("claim", (ClaimDevice("driver", "pool", "device", ("cdi",), "share"),))
    spec = PodSpec(
        name="a/b ü",
        namespace="n s",
        containers=(ContainerSpec("c", exclusive_cpus=1, memory={"memory": 5}, claims=(claim,)),),
        init_containers=(ContainerSpec("i"), ContainerSpec("s", sidecar=True)),
        labels={"app": "x"},
        annotations={"note": "y"},
        owner=Owner("Job", "j", "u", "batch/v1"),
        priority_class="high",
        qos_class="Burstable",
        uid="given",
    )
    assert await client.add_pod(spec) == "given"
    assert [pod.spec for pod in kubelet.pods()] == [spec]
    await client.delete_pod("n s", "a/b ü")
    assert kubelet.pods() == ()


async def test_faults_arrive_and_come_back(kubelet: SimulatedKubelet, client: ControlClient) -> None:
    faults = Faults(slow=1.5, hang=True, methods=("List",), registration=RegistrationFaults(gone=True))
    await client.set_faults(faults)
    assert kubelet.faults == faults
    assert await client.faults() == faults
    assert not kubelet.paths()["registration"].exists()


async def test_refusals_are_raised_as_by_the_kubelet_itself(
    kubelet: SimulatedKubelet, client: ControlClient
) -> None:
    spec = pod()
    with pytest.raises(AdmissionError) as refused:
        await client.add_pod(spec)
    assert refused.value.reason == f"OutOf{R}"
    await client.add_pod(PodSpec("q"))
    with pytest.raises(ControlError, match="pod default/q exists already"):
        await client.add_pod(PodSpec("q"))
    with pytest.raises(ControlError, match="pod default/nobody not found"):
        await client.delete_pod("default", "nobody")
    with pytest.raises(ControlError, match="pod default/q has no container x"):
        await client.restart_container("default", "q", "x")

    async def broken(_ids: object) -> None:
        raise RuntimeError("a defect of the script")

    options = Options(pre_start_required=True)
    async with registered(kubelet, R, [Device("a")], options=options, pre_start=broken):
        with pytest.raises(
            ContainerError, match="PreStartContainer rpc failed with err: rpc error: code = Unknown"
        ):
            await client.add_pod(spec)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"name":""}',
        b'{"name":"p","containers":[{"name":"c","resources":{"r":-1}}]}',
        b'{"name":7}',
    ],
)
async def test_nonsense_is_an_answer_not_a_crash(
    kubelet: SimulatedKubelet, client: ControlClient, body: bytes
) -> None:
    connector = aiohttp.UnixConnector(str(kubelet.root / "simulator.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post("http://simulator/pods", data=body) as response,
    ):
        assert response.status == 400
        assert (await response.json())["kind"] == "invalid"
    assert await client.pods() == []


async def test_the_socket_is_its_owners_alone_and_goes(kubelet: SimulatedKubelet) -> None:
    path = kubelet.root / "simulator.sock"
    async with control_server(kubelet):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        ("none", Faults()),
        ("slow=3s hang", Faults(slow=3, hang=True)),
        ("rate-limited", Faults(rate_limited=1)),
        ("rate-limited=3 garbage gone", Faults(rate_limited=3, garbage=True, gone=True)),
        ("twice forgets=default/a,b/c", Faults(twice=True, forgets=("default/a", "b/c"))),
        ("error=unavailable methods=List,Get", Faults(error="UNAVAILABLE", methods=("List", "Get"))),
        (
            "registration.slow=100ms registration.hang",
            Faults(registration=RegistrationFaults(slow=0.1, hang=True)),
        ),
        (
            "registration.gone registration.error=INTERNAL",
            Faults(registration=RegistrationFaults(gone=True, error="INTERNAL")),
        ),
    ],
)
def test_faults_in_words(words: str, faults: Faults) -> None:
    assert parse_faults(tuple(words.split())) == faults


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hnag", "found 'hnag', expected a fault"),
        ("slow", "expected a duration"),
        ("slow=fast", "expected a duration"),
        ("hang=1", "found 'hang=1', expected a fault"),
        ("rate-limited=x", "found 'rate-limited=x', expected a fault"),
        ("error=", "found 'error=', expected a fault"),
        ("error=BROKEN", "found 'BROKEN', expected one of"),
        ("registration.garbage", "which Registration cannot do"),
        ("other.hang", "found 'other.hang', expected a fault"),
    ],
)
def test_words_that_are_no_faults(word: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_faults((word,))
