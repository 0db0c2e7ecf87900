import pytest

from plugin.config.load import load
from plugin.config.plan import ResourcePlan, Sharing
from plugin.devices.allocation import AllocationError, ContainerAllocation, Refusal, render, request
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory, ObservedDevice
from plugin.devices.rendering import ContainerNode, Mount
from runtime.clock import Instant

CAMERA = """\
version: 1
resources:
  - name: example.com/camera
    discover: [{exec: {command: [/bin/list]}}]
    share: {replicas: 3, max_per_container: 4}
    allocate:
      env:
        CAMERAS: "{{ devices | map(attribute='id') | join(',') }}"
        ASKED: "{{ ids | join(',') }}"
        "CAMERA_{{ device.id | upper }}": "{{ device.path }}"
      devices:
        - {host: /dev/mediactl}
        - {host: "{{ device.path }}", container: "/dev/cam/{{ device.id }}", permissions: mrw}
      mounts:
        - {host: "/etc/cameras/{{ device.attrs.model }}", container: /etc/cameras/model, read_only: true}
        - {host: "/tmp/{{ device.id }}", create: directory}
      annotations: {"example.com/count": "{{ devices | length }}"}
      cdi: ["vendor.example/camera={{ device.id }}", "vendor.example/control=all"]
"""


def plan(text: str = CAMERA) -> ResourcePlan:
    (made,) = load(text.encode(), "x")
    return made


def inventory(*sick: str) -> Inventory:
    made = Inventory(Sharing(3))
    made.survey(
        [
            ObservedDevice(
                Device(name, name, f"/dev/{name}", {"model": "c9"}), "it is broken" if name in sick else ""
            )
            for name in ("video10", "video2", "video3")
        ],
        Instant(0, 0),
    )
    return made


def test_the_whole_answer() -> None:
    asked = ["video10::0", "video2::2", "video10::1"]
    made = render(plan(), asked, request(inventory(), plan(), asked).devices)
    assert made == ContainerAllocation(
        env={
            "CAMERAS": "video2,video10",
            "ASKED": "video2::2,video10::0,video10::1",
            "CAMERA_VIDEO2": "/dev/video2",
            "CAMERA_VIDEO10": "/dev/video10",
        },
        devices=(
            ContainerNode("/dev/mediactl", "/dev/mediactl", "rw"),
            ContainerNode("/dev/video2", "/dev/cam/video2", "mrw"),
            ContainerNode("/dev/video10", "/dev/cam/video10", "mrw"),
        ),
        mounts=(
            Mount("/etc/cameras/c9", "/etc/cameras/model", read_only=True, create=None),
            Mount("/tmp/video2", "/tmp/video2", read_only=False, create="directory"),
            Mount("/tmp/video10", "/tmp/video10", read_only=False, create="directory"),
        ),
        annotations={"example.com/count": "2"},
        cdi=("vendor.example/camera=video2", "vendor.example/camera=video10", "vendor.example/control=all"),
    )


def test_the_order_of_the_request_does_not_matter() -> None:
    asked = ["video10::0", "video3::1", "video2::2"]
    one = render(plan(), asked, request(inventory(), plan(), asked).devices)
    assert render(plan(), asked[::-1], request(inventory(), plan(), asked[::-1]).devices) == one


@pytest.mark.parametrize(
    ("asked", "refusal", "words"),
    [
        (["video9::0"], Refusal.FAILED_PRECONDITION, "'video9::0' is unknown"),
        (["video2"], Refusal.FAILED_PRECONDITION, "'video2' is unknown"),
        (["video3::0", "video2::0"], Refusal.FAILED_PRECONDITION, "'video3::0' is unhealthy (it is broken)"),
        ([], Refusal.INVALID_ARGUMENT, "names no device"),
        ([f"video2::{n}" for n in range(5)], Refusal.INVALID_ARGUMENT, "at most 4, 5 were asked for"),
        (["\x1b[31m"], Refusal.FAILED_PRECONDITION, "'\\x1b[31m' is unknown"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(asked: list[str], refusal: Refusal, words: str) -> None:
    with pytest.raises(AllocationError) as caught:
        request(inventory("video3"), plan(), asked)
    assert caught.value.refusal is refusal
    assert words in str(caught.value)
    assert str(caught.value).startswith("example.com/camera: ")


def test_many_faults_are_counted_rather_than_listed() -> None:
    many = plan(CAMERA.replace(", max_per_container: 4", ""))
    with pytest.raises(AllocationError, match=r"and 92 more$"):
        request(inventory(), many, [f"x{n}" for n in range(100)])


def test_an_id_named_twice_counts_once() -> None:
    assert [d.id for d in request(inventory(), plan(), ["video2::0"] * 9).devices] == ["video2"]


@pytest.mark.parametrize(
    ("allocate", "words"),
    [
        ("env: {A: '{{ devices[0].attrs.nope }}'}", "allocate.env.A: 'dict object' has no attribute 'nope'"),
        ("env: {A: '{{ ids[9] }}'}", "allocate.env.A: "),
        (
            "env: {'A{{ device.attrs.model }}': '{{ device.id }}'}",
            "allocate.env.A{{ device.attrs.model }}: gives 'Ac9' two",
        ),
        ("env: {'{{ device.path }}': x}", "expected a variable's name"),
        (
            "devices: [{host: '{{ device.name }}'}]",
            "allocate.devices[0].host: rendered 'video10', expected an absolute",
        ),
        ("mounts: [{host: '/x/{{ device.attrs.up }}'}]", "allocate.mounts[0].host: "),
        ("cdi: ['{{ device.path }}']", "allocate.cdi[0]: rendered '/dev/video10', expected a CDI name"),
        ("annotations: {'{{ device.path }}': x}", "allocate.annotations"),
        ("env: {A: \"{{ devices[0].attrs.model ~ '\\0' }}\"}", "allocate.env.A"),
    ],
)
def test_a_template_that_fails_is_reported_with_its_place(allocate: str, words: str) -> None:
    broken = plan(CAMERA.partition("    allocate:")[0] + f"    allocate: {{{allocate}}}\n")
    devices = [known.device for known in inventory().devices.values()]
    with pytest.raises(AllocationError) as caught:
        render(broken, ["video10", "video2"], devices)
    assert caught.value.refusal is Refusal.INTERNAL
    assert words in str(caught.value)
