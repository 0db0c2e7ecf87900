"""exporter.mapping.chosen_devices: which physical device a holder uses, where another scheduler chose it."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.chosen_devices import KUBELETS, NO_CHOICES, Choice, choices
from exporter.mapping.dra import ChosenDevice, PodDevices
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Device, Holder, PodKey, Snapshot
from harness import scene

A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
P, Q = Holder("n", "p", "main", "uid-p"), Holder("n", "q", "main", "uid-q")
RDMA = scene.device("mlx5_0", P, resource="rdma/hca")


def _pods(*chosen: str, unreadable: str = "", container: str = "main") -> Mapping[PodKey, PodIdentity]:
    found = tuple([ChosenDevice("HAMi", container, device) for device in chosen])
    devices = PodDevices(chosen=found, unreadable=unreadable)
    return {
        ("n", "p"): PodIdentity("n", "p", "uid-p", devices=devices),
        ("n", "q"): PodIdentity("n", "q", "q"),
    }


def _of(pods: Mapping[PodKey, PodIdentity], *devices: Device) -> dict[str, Choice]:
    """The choices for the holders of devices, by device."""
    found = choices(scene.snapshot(*devices), pods)
    held = [device for device in devices if device.holders]
    return {one.key.device: found.get(one.key, {}).get(one.holders[0], KUBELETS) for one in held}


def test_without_another_scheduler_the_kubelet_chose() -> None:
    snapshot = scene.snapshot(scene.device(f"{A}-0", P))
    assert choices(snapshot, _pods()) is NO_CHOICES
    assert choices(snapshot, {}) is NO_CHOICES
    assert KUBELETS.parent(scene.device("a::0", P, parent="a")) == "a"


def test_the_annotation_names_the_physical_device_and_not_the_id() -> None:
    held, other = scene.device(f"{A}-0", P), scene.device(f"{A}-1", Q)
    found = _of(_pods(B), held, other, scene.device(f"{B}-0"), RDMA)
    assert found == {
        f"{A}-0": Choice(B, "HAMi"),
        f"{A}-1": KUBELETS,
        # The network card is none of the scheduler's.
        "mlx5_0": KUBELETS,
    }
    assert found[f"{A}-0"].parent(held) == B
    assert _of(_pods(A), held)[f"{A}-0"] == Choice(A, "HAMi"), "its id says the same"


def test_devices_with_parents_and_whole_devices_are_matched() -> None:
    share = scene.device("a::0", P, parent="a")
    assert _of(_pods("b"), share, scene.device("b::0", parent="b"))["a::0"].parent(share) == "b"
    whole = scene.device(A, P)
    assert _of(_pods(A), whole)[A].parent(whole) == ""
    assert _of(_pods(B), whole, scene.device(B))[A].parent(whole) == B


def test_several_devices_of_a_container_have_those_that_are_chosen() -> None:
    held = [scene.device(f"{gpu}-0", P) for gpu in (A, B)]
    found = _of(_pods(C, A), *held, scene.device(f"{C}-0"))
    assert {device: choice.device for device, choice in found.items()} == {f"{A}-0": A, f"{B}-0": C}


def _doubts(pods: Mapping[PodKey, PodIdentity], *devices: Device) -> dict[str, str]:
    found = _of(pods, *devices)
    for device in devices:
        choice = found.get(device.key.device, KUBELETS)
        assert not choice.doubt or (choice.device, choice.parent(device)) == ("", "")
    return {device: choice.doubt for device, choice in found.items() if choice.doubt}


def test_what_cannot_be_matched_is_not_provable() -> None:
    held, free = scene.device(f"{A}-0", P), scene.device(f"{B}-0")
    annotation = "volcano.sh/gpu-index"
    unreadable = f"the pod's annotation {annotation} cannot be read"
    assert _doubts(_pods(unreadable=annotation), held, free) == {f"{A}-0": unreadable}
    # Which of its resources the scheduler chooses is not known.
    nowhere = f"HAMi chose {C}, which no resource of the node offers"
    assert _doubts(_pods(C), held, free, RDMA) == {f"{A}-0": nowhere, "mlx5_0": nowhere}
    two = "HAMi chose 2 devices, and the container holds 1"
    assert _doubts(_pods(A, B), held, free) == {f"{A}-0": two}
    none = f"other schedulers choose devices of {scene.GPU}, and none is chosen for the container"
    assert _doubts(_pods(B, container="side"), held, free) == {f"{A}-0": none}


def test_holder_that_is_not_identified_is_not_provable_beside_one_that_is() -> None:
    pods = {("n", "p"): _pods(B)["n", "p"]}
    found = choices(
        scene.snapshot(
            scene.device(f"{A}-0", P),
            scene.device(f"{A}-1", Q),
            scene.device(f"{B}-0"),
            scene.device("d", Q, resource="r"),
        ),
        pods,
    )
    assert {
        key.device: {holder.pod: bool(one.doubt) for holder, one in of.items()} for key, of in found.items()
    } == {
        f"{A}-0": {"p": False},
        f"{A}-1": {"q": True},
    }


GPUS = st.sampled_from([A, B, C])


@given(st.lists(GPUS, max_size=4), st.sets(st.tuples(GPUS, st.integers(0, 2)), max_size=6), st.booleans())
def test_a_holder_has_each_chosen_device_once_or_none_is_provable(
    chosen: list[str], held: set[tuple[str, int]], unreadable: bool
) -> None:
    devices = [scene.device(f"{gpu}-{n}", P) for gpu, n in sorted(held)]
    devices += [scene.device(f"{gpu}-9") for gpu in (A, B)]
    snapshot = Snapshot(tuple(sorted(devices, key=lambda device: device.key)))
    found = choices(snapshot, _pods(*chosen, unreadable="x" if unreadable else ""))
    of_pod = [by_holder[P] for by_holder in found.values()]
    if not held or not (chosen or unreadable):
        assert not of_pod
    elif any(choice.doubt for choice in of_pod):
        assert len({choice.doubt for choice in of_pod}) == 1
        assert len(of_pod) == len(held)
    else:
        assert sorted(choice.device for choice in of_pod) == sorted(chosen)
