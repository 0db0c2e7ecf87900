"""Which directories of the host have to be mounted for a source: those that presets look into are mounted."""

from pathlib import Path, PurePosixPath

import pytest

from harness.manifests import RENDERED, container, mounts, pod_of
from plugin.config import model
from plugin.config.load import load
from plugin.config.looked_into import EVERYWHERE, looked_into
from plugin.presets import preset_path

PRESETS = sorted(path.stem for path in preset_path("nvidia").parent.glob("*.yaml"))


@pytest.mark.parametrize(
    ("source", "places"),
    [
        (model.Files("/etc/colas"), set()),
        (model.Regex("video.*"), {"/dev"}),
        (model.Glob(["/dev/video*", "/devices/x"]), {"/dev"}),
        (model.Glob(["/sys/class/hwmon/*"]), {"/sys/class", "/sys/devices"}),
        (model.Glob(["/sys/devices/virtual/*"]), {"/sys/devices"}),
        (model.Group([model.GroupMember("/dev/a"), model.GroupMember("/srv/b")]), {"/dev"}),
        (model.Static([model.StaticDevice("a"), model.StaticDevice("b", path="/dev/b")]), {"/dev"}),
        (model.Pci(), {"/sys/bus", "/sys/devices"}),
        (model.Usb(), {"/sys/bus", "/sys/devices"}),
        (model.Net(), {"/sys/bus", "/sys/class", "/sys/devices", "/proc/1/net"}),
        (model.Net(default_route=True), {"/sys/bus", "/sys/class", "/sys/devices"}),
        (model.Nvidia(), {"/dev", "/sys/bus", "/sys/devices", "/proc/driver"}),
        (model.Exec(["/bin/x"]), set()),
    ],
)
def test_a_source_looks_where_its_devices_are(source: model.AnySource, places: set[str]) -> None:
    assert looked_into(source) == places


def test_every_linux_has_them() -> None:
    assert [place for place in EVERYWHERE if not Path(place).is_dir()] == []


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_looks_into_is_mounted_by_the_component_for_hardware(name: str) -> None:
    (path,) = (path for path in RENDERED if path.stem == "hardware")
    pod = pod_of(path)
    assert container(pod, "plugin")
    seen = [PurePosixPath(mount["mountPath"]) for part, mount, _ in mounts(pod) if part == "plugin"]
    plans = load(preset_path(name).read_bytes(), name)
    places = {place for plan in plans for source in plan.sources for place in looked_into(source)}
    for place in places:
        inside = PurePosixPath(f"/host{place}")
        assert any(inside.is_relative_to(mount) for mount in seen), f"{place} is not mounted"
