"""Configurations that load: the plan, files that are loaded together, and presets that a file adjusts."""

from pathlib import Path

import pytest

from plugin.config.load import load, load_all
from plugin.config.plan import ResourcePlan
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
      annotations: &a {x: y}
      cdi: ["vendor.example/camera={{ device.id }}"]
"""
LAMP = EXAMPLE.replace(b"example.com/camera", b"example.com/lamp")


def test_a_configuration_becomes_a_plan() -> None:
    (plan,) = load(EXAMPLE, "x")
    assert plan.name == "example.com/camera"
    assert plan.sources == (
        Glob(["/dev/video*"]),
        Static([StaticDevice("0", numa=1, attrs={"model": "C9"})]),
    )
    assert (plan.numa, plan.sharing.replicas, plan.max_per_container, plan.prefer) == ("off", 4, 1, "packed")
    assert [e.name.text for e in plan.allocate.env] == ["CAMERAS"]
    assert [e.name.text for e in plan.allocate.annotations] == ["x"]
    assert plan.allocate.mounts[0].read_only
    assert not plan.advertise_empty


def test_equal_texts_make_equal_plans() -> None:
    assert load(EXAMPLE, "x") == load(EXAMPLE, "y")
    assert load(EXAMPLE, "x") != load(EXAMPLE.replace(b"rw}", b"r}"), "x")
    assert load(EXAMPLE, "x") != load(EXAMPLE.replace(b"join(',')", b"join(';')"), "x")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("off", "off"), ('"off"', "off"), ("false", "off"), ("auto", "auto"), ("0", 0), ("3", 3)],
)
def test_numa_in_each_notation(written: str, meant: object) -> None:
    (plan,) = load(EXAMPLE.replace(b"numa: off", f"numa: {written}".encode()), "x")
    assert plan.numa == meant


def test_resources_of_several_files_are_served_together() -> None:
    plans = load_all([("one", EXAMPLE), ("two", LAMP)])
    assert [plan.name for plan in plans] == ["example.com/camera", "example.com/lamp"]


def test_a_resource_in_two_files_is_refused_with_both_places() -> None:
    with pytest.raises(ConfigError) as caught:
        load_all([("one", LAMP), ("two", EXAMPLE), ("three", b"# more\n" + LAMP)])
    assert str(caught.value) == ("three:4: resources[0].name: found 'example.com/lamp', which one:3 has too")


def test_a_preset_in_a_file_and_on_the_command_line_is_refused_with_advice() -> None:
    cola = PRESETS["cola"].read_bytes()
    with pytest.raises(ConfigError) as caught:
        load_all([("mine.yaml", EXAMPLE + b"  - preset: cola\n"), ("preset cola", cola)])
    assert str(caught.value) == (
        "preset cola:5: resources[0].name: found 'myway5.com/cola', which mine.yaml:19 has too: "
        "begin the file's resource with the key 'preset' to adjust a preset"
    )


ONE = b"""\
version: 1
resources:
  - name: vendor.example/one
    discover:
      - glob: {paths: [/dev/one*]}
    numa: "off"
    share: {max_per_container: 2}
    health:
      - exists: "{{ device.path }}"
    allocate:
      env: {A: "1", B: "2"}
      devices:
        - {host: "{{ device.path }}"}
      annotations: {x: y}
    pre_start: {exec: [/bin/true], timeout: 5s}
"""
TWO = b"""\
version: 1
resources:
  - name: vendor.example/two
    discover: [{glob: {paths: [/dev/two*]}}]
  - name: vendor.example/two-b
    discover: [{glob: {paths: [/dev/b*]}}]
  - name: "vendor.example/f-{{ device.name }}"
    discover: [{glob: {paths: [/dev/f*]}}]
"""
NEAR = b"""\
version: 1
resources:
  - {name: vendor.example/near, discover: [{glob: {paths: [/dev/n*]}}], prefer: numa}
"""
OWN: dict[str, Path] = {}
HEAD = "version: 1\nresources:\n"


@pytest.fixture(scope="module", autouse=True)
def _presets(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("presets")
    for name, content in {"one": ONE, "two": TWO, "near": NEAR}.items():
        OWN[name] = directory / f"{name}.yaml"
        OWN[name].write_bytes(content)


def adjusted(text: str) -> tuple[ResourcePlan, ...]:
    return load((HEAD + text).encode(), "plugin.yaml", OWN)


def test_a_preset_brings_all_its_resources() -> None:
    assert adjusted("  - preset: two\n") == load(TWO, "x")


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("vendor.example/two", "vendor.example/two"),
        ("vendor.example/two-", "vendor.example/two-b"),
        ("vendor.example/f-", "vendor.example/f-{{ device.name }}"),
    ],
)
def test_of_picks_one_resource_by_the_beginning_of_its_name(of: str, name: str) -> None:
    (plan,) = adjusted(f"  - {{preset: two, of: {of}}}\n")
    assert plan.name == name


def test_mappings_merge_at_every_level_and_other_values_replace() -> None:
    (plan,) = adjusted("""\
  - preset: one
    name: mine.example/one
    numa: 1
    share: {replicas: 4}
    allocate:
      env: {B: "3", C: "4"}
      devices: [{host: /dev/other}]
    pre_start: {timeout: 7s}
""")
    assert (plan.name, plan.numa) == ("mine.example/one", 1)
    assert (plan.sharing.replicas, plan.max_per_container) == (4, 2)
    assert {e.name.text: e.value.text for e in plan.allocate.env} == {"A": "1", "B": "3", "C": "4"}
    assert [n.host.text for n in plan.allocate.devices] == ["/dev/other"]
    assert [e.name.text for e in plan.allocate.annotations] == ["x"]
    assert plan.pre_start is not None
    assert ([c.text for c in plan.pre_start.command], plan.pre_start.timeout) == (["/bin/true"], 7.0)
    assert [probe.place for probe in plan.probes] == ["health[0].exists", "allocate.devices"]


def test_a_key_without_a_value_removes_that_of_the_preset() -> None:
    (plan,) = adjusted("""\
  - preset: one
    share:
    pre_start: ~
    allocate: {env: {A: }}
""")
    assert (plan.max_per_container, plan.pre_start) == (None, None)
    assert [e.name.text for e in plan.allocate.env] == ["B"]


def test_a_key_beside_a_preset_of_several_resources_applies_to_each() -> None:
    assert [p.prefer for p in adjusted("  - {preset: two, prefer: packed}\n")] == ["packed"] * 3


def test_one_preset_can_be_served_under_several_names() -> None:
    text = "  - preset: one\n  - {preset: one, name: a.example/b, exclusive: false}\n"
    assert [p.name for p in adjusted(text)] == ["vendor.example/one", "a.example/b"]


@pytest.mark.parametrize(
    ("text", "line", "place", "words"),
    [
        ("- {preset: onee}", 3, "[0].preset", "found 'onee', did you mean 'one'?, expected one of near, one"),
        ("- {preset: [one]}", 3, "[0].preset", "found a list, expected one of near, one, two"),
        ("- {preset: }", 3, "[0].preset", "found nothing, expected one of near, one, two"),
        ("- {prest: one}", 3, "[0].prest", "did you mean 'preset'?"),
        ("- {of: x, name: a.b/c}", 3, "[0].of", "found of without preset"),
        ("- {preset: two, of: vendor.example/tow}", 3, "[0].of", "did you mean 'vendor.example/two'?"),
        ("- {preset: two, of: vendor.example/}", 3, "[0].of", "expected one of 'vendor.example/two'"),
        ("- {preset: two, of: ''}", 3, "[0].of", "expected one of 'vendor.example/two'"),
        ("- preset: two\n    name: a.b/c", 4, "[0].name", "one name for 3 resources, expected of: one"),
        ("- preset: one\n    alocate: {}", 4, "[0].alocate", "did you mean 'allocate'?"),
        ("- preset: one\n    shar: ", 4, "[0].shar", "has no 'shar', did you mean 'share'?"),
        ("- preset: one\n    numa: 9999", 4, "[0].numa", "found 9999, expected auto, off"),
        ("- preset: one\n    name:", 3, "[0]", "expected the key 'name', which is missing"),
        ("- preset: one\n    share: 4", 4, "[0].share", "found 4, expected a mapping"),
        ("- preset: one\n    cdi: {name: '{{ device.id }}'}", 4, "[0].cdi", "expected the key 'kind'"),
        ("- preset: one\n    allocate:\n      env: {A: '{{ x }}'}", 5, "[0].allocate.env.A", "unknown name"),
        ("- preset: two\n  - preset: one\n    numa: x", 5, "[1].numa", "found 'x'"),
        (
            "- preset: near\n    numa: off",
            3,
            "[0].prefer",
            "with numa off: no device would have a NUMA node ",
        ),
        ("- preset: near\n    numa: off", 3, "[0].prefer", " (with preset 'near')"),
        (
            "- preset: near\n  - preset: one\n    name: vendor.example/near",
            5,
            "[1].name",
            "found 'vendor.example/near' a second time, the first is on line 3",
        ),
    ],
)
def test_an_error_beside_a_preset_has_the_line_and_path_of_the_file(
    text: str, line: int, place: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        adjusted(f"  {text}\n")
    assert str(caught.value).startswith(f"plugin.yaml:{line}: resources{place}: ")
    assert words in str(caught.value)
