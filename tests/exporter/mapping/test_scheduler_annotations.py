"""exporter.mapping.scheduler_annotations: which devices HAMi and Volcano chose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.dra import ChosenDevice
from exporter.mapping.scheduler_annotations import chosen_devices

HAMI = "hami.io/vgpu-devices-allocated"
VOLCANO = "volcano.sh/vgpu-ids-new"
GPU = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
OTHER = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"

READABLE = {
    f"{HAMI}={GPU},NVIDIA,3000,0:;": ["main"],
    f"{HAMI}={GPU},NVIDIA-NVIDIA A100 80GB,3000,0:{OTHER},NVIDIA,3000,0:;;": ["main main", ""],
    f"{HAMI}=;{GPU},NVIDIA,3000,0:;{OTHER},NVIDIA,1,50:;": ["-", "main", "side"],
    "hami.io/Ascend910B3-devices-allocated=;;BD9A-01,Ascend910B3,65536,0:;": ["-", "", "side"],
    f"{HAMI}={GPU}[1-0],NVIDIA,3000,0:;": ["main"],
    f"{HAMI}=;": [""],
    f"{VOLCANO}={GPU},NVIDIA,3000,0:": ["main"],
    f"{VOLCANO}={GPU},NVIDIA,3000,0:;{OTHER},NVIDIA,3000,0:": ["main", "side"],
    f"{VOLCANO}=": ["", ""],
}
"""An annotation, and for each of its entries the containers that it names; `-` is an init container's."""


@pytest.mark.parametrize("annotation", READABLE)
def test_each_entry_belongs_to_a_container(annotation: str) -> None:
    name, _, text = annotation.partition("=")
    entries = READABLE[annotation]
    init = ["setup"] if "-" in entries else []
    containers = ["main", "side"][: len(entries) - len(init)]
    chosen, unreadable = chosen_devices({"a": "b", name: text}, init, containers)
    assert unreadable == ""
    assert [one.container for one in chosen] == " ".join(entries).replace("-", "").split()
    assert {one.device for one in chosen} <= {GPU, OTHER, "BD9A-01"}
    assert {one.scheduler for one in chosen} <= {"Volcano" if name == VOLCANO else "HAMi"}


def test_entries_of_hami_before_2_9_leave_init_containers_out() -> None:
    old = {HAMI: f"{GPU},NVIDIA,3000,0:;"}
    assert chosen_devices(old, ["setup"], ["main"])[0] == (ChosenDevice("HAMi", "main", GPU),)
    new = {HAMI: f";{GPU},NVIDIA,3000,0:;"}
    assert chosen_devices(new, ["setup"], ["main"])[0] == (ChosenDevice("HAMi", "main", GPU),)


def test_devices_of_several_vendors_are_all_read() -> None:
    annotations = {
        HAMI: f"{GPU},NVIDIA,3000,0:;",
        "hami.io/cambricon-mlu-devices-allocated": "MLU-1,MLU370,3000,0:;",
    }
    chosen, _ = chosen_devices(annotations, [], ["main"])
    assert [one.device for one in chosen] == ["MLU-1", GPU]


@pytest.mark.parametrize(
    "annotation",
    [
        f"{HAMI}=",
        f"{HAMI}={GPU},NVIDIA,3000,0:",
        f"{HAMI}={GPU},NVIDIA,3000,0:;;;",
        f"{HAMI}={GPU},NVIDIA,3000:;",
        f"{HAMI}={GPU},NVIDIA,many,0:;",
        f"{HAMI}=,NVIDIA,3000,0:;",
        f"{HAMI}={GPU}\n,NVIDIA,3000,0:;",
        f"{HAMI}=::;",
        f"{HAMI}={'x' * 129},NVIDIA,3000,0:;",
        f"{HAMI}={f'{GPU},NVIDIA,3000,0:' * 257};",
        f"{HAMI}={'x' * 70_000};",
        f"{VOLCANO}={GPU},NVIDIA,3000,0:;",
        "volcano.sh/gpu-index=0",
    ],
)
def test_annotation_in_another_form_is_unreadable(annotation: str) -> None:
    name, _, text = annotation.partition("=")
    assert chosen_devices({name: text}, [], ["main"]) == ((), name)
    readable = {HAMI.replace("vgpu", "dcu"): "DCU-1,DCU,1,1:;"}
    assert chosen_devices({name: text} | readable, [], ["main"]) == ((), name), "nothing is guessed"


def test_other_annotations_say_nothing() -> None:
    others = {"hami.io/vgpu-devices-to-allocate": "x", "x.example/vgpu-devices-allocated": "x", "": "x"}
    assert chosen_devices(others, [], ["main"]) == ((), "")


names = st.sampled_from([HAMI, VOLCANO, "volcano.sh/gpu-index", "hami.io/-devices-allocated"])
texts = st.lists(st.sampled_from([GPU, ",", ":", ";", "1", "NVIDIA", "[0-1]", "\n", "é"])).map("".join)


@given(st.dictionaries(names, texts | st.text()), st.integers(0, 3), st.integers(0, 3))
def test_no_text_raises_or_names_a_device_that_it_lacks(
    annotations: dict[str, str], init: int, containers: int
) -> None:
    init_names = [f"i{n}" for n in range(init)]
    names = [f"c{n}" for n in range(containers)]
    chosen, unreadable = chosen_devices(annotations, init_names, names)
    assert not (chosen and unreadable)
    for one in chosen:
        assert one.container in init_names + names
        assert any(one.device in text for text in annotations.values())
