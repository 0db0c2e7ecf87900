import pytest

from plugin.config.load import load, load_all
from plugin.discovery.glob import Glob
from plugin.discovery.static import Static, StaticDevice
from plugin.presets import PRESETS
from runtime.config_file import ConfigError

EXAMPLE = b"""\
version: 1
resources:
  - name: example.com/camera
    discover:
      - glob: {paths: [/dev/video*]}
      - static: {devices: [{name: "0", numa: 1, attrs: {model: C9}}]}
    match: "{{ device.attrs.get('model', '').startswith('C9') }}"
    id: "{{ device.name }}"
    numa: off
    share: {replicas: 4, max_per_container: 1}
    health: [{exists: "{{ device.path }}"}]
    prefer: packed
    allocate:
      env: {CAMERAS: "{{ devices | map(attribute='id') | join(',') }}"}
      devices: [{host: "{{ device.path }}", container: "{{ device.path }}", permissions: rw}]
      mounts: [{host: /etc/cameras, container: /etc/cameras, read_only: true}]
      annotations: {}
      cdi: ["vendor.example/camera={{ device.id }}"]
"""


def test_the_language_is_read_as_the_design_writes_it() -> None:
    (plan,) = load(EXAMPLE, "x")
    assert plan.name == "example.com/camera"
    assert plan.sources == (
        Glob(["/dev/video*"]),
        Static([StaticDevice("0", numa=1, attrs={"model": "C9"})]),
    )
    assert (plan.numa, plan.replicas, plan.max_per_container, plan.prefer) == ("off", 4, 1, "packed")
    assert [e.name.text for e in plan.allocate.env] == ["CAMERAS"]
    assert plan.allocate.mounts[0].read_only
    assert not plan.advertise_empty


def test_the_same_text_makes_equal_plans_and_a_change_is_seen() -> None:
    assert load(EXAMPLE, "x") == load(EXAMPLE, "y")
    assert load(EXAMPLE, "x") != load(EXAMPLE.replace(b"rw}", b"r}"), "x")
    assert load(EXAMPLE, "x") != load(EXAMPLE.replace(b"join(',')", b"join(';')"), "x")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("off", "off"), ('"off"', "off"), ("false", "off"), ("auto", "auto"), ("0", 0), ("3", 3)],
)
def test_numa_is_read_as_it_is_meant(written: str, meant: object) -> None:
    (plan,) = load(EXAMPLE.replace(b"numa: off", f"numa: {written}".encode()), "x")
    assert plan.numa == meant


def test_aliases_stand_for_what_they_name() -> None:
    text = EXAMPLE.replace(b"annotations: {}", b"annotations: &a {x: y}").replace(
        b'CAMERAS: "', b'B: "", CAMERAS: "'
    )
    (plan,) = load(text, "x")
    assert [e.name.text for e in plan.allocate.annotations] == ["x"]


LAMP = EXAMPLE.replace(b"example.com/camera", b"example.com/lamp")


def test_resources_of_several_files_are_served_together() -> None:
    assert [p.name for p in load_all([("one", EXAMPLE), ("two", LAMP)])] == [
        "example.com/camera",
        "example.com/lamp",
    ]


def test_a_resource_that_two_files_ask_for_is_refused_with_both_places() -> None:
    with pytest.raises(ConfigError) as caught:
        load_all([("one", LAMP), ("two", EXAMPLE), ("three", b"# more\n" + LAMP)])
    assert str(caught.value) == ("three:4: resources[0].name: found 'example.com/lamp', which one:3 has too")


def test_who_asks_for_a_preset_and_for_its_resource_is_told_how_to_adjust_it() -> None:
    cola = PRESETS["cola"].read_bytes()
    with pytest.raises(ConfigError) as caught:
        load_all([("mine.yaml", EXAMPLE + b"  - preset: cola\n"), ("preset cola", cola)])
    assert str(caught.value) == (
        "preset cola:5: resources[0].name: found 'myway5.com/cola', which mine.yaml:19 has too: "
        "begin the file's resource with the key 'preset' to adjust a preset"
    )
