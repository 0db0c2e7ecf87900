"""Presets that a configuration begins from: what is merged over them, and where errors point."""

from pathlib import Path

import pytest

from plugin.config.load import load
from plugin.config.plan import ResourcePlan
from runtime.config_file import ConfigError

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
PRESETS: dict[str, Path] = {}
HEAD = "version: 1\nresources:\n"


@pytest.fixture(scope="module", autouse=True)
def _presets(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("presets")
    for name, content in {"one": ONE, "two": TWO, "near": NEAR}.items():
        PRESETS[name] = directory / f"{name}.yaml"
        PRESETS[name].write_bytes(content)


def plans(text: str) -> tuple[ResourcePlan, ...]:
    return load((HEAD + text).encode(), "plugin.yaml", PRESETS)


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        plans(text)
    return caught.value


def test_a_preset_alone_is_what_it_is() -> None:
    assert plans("  - preset: one\n") == load(ONE, "x")


def test_all_resources_of_a_preset_come_with_it() -> None:
    assert plans("  - preset: two\n") == load(TWO, "x")


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("vendor.example/two", "vendor.example/two"),
        ("vendor.example/two-b", "vendor.example/two-b"),
        ("vendor.example/two-", "vendor.example/two-b"),
        ("vendor.example/f-", "vendor.example/f-{{ device.name }}"),
    ],
)
def test_of_picks_one_resource_by_enough_of_its_name(of: str, name: str) -> None:
    (plan,) = plans(f"  - {{preset: two, of: {of}}}\n")
    assert plan.name == name


def test_mappings_merge_all_the_way_down_and_everything_else_replaces() -> None:
    (plan,) = plans("""\
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
    assert (plan.replicas, plan.max_per_container) == (4, 2)
    assert {e.name.text: e.value.text for e in plan.allocate.env} == {"A": "1", "B": "3", "C": "4"}
    assert [n.host.text for n in plan.allocate.devices] == ["/dev/other"]
    assert [e.name.text for e in plan.allocate.annotations] == ["x"]
    assert plan.pre_start is not None
    assert ([c.text for c in plan.pre_start.command], plan.pre_start.timeout) == (["/bin/true"], 7.0)
    assert len(plan.probes) == 1


def test_a_key_with_nothing_in_it_takes_the_preset_s_away() -> None:
    (plan,) = plans("""\
  - preset: one
    share:
    pre_start: ~
    allocate: {env: {A: }}
""")
    assert (plan.max_per_container, plan.pre_start) == (None, None)
    assert [e.name.text for e in plan.allocate.env] == ["B"]


def test_what_is_written_beside_a_preset_of_several_resources_holds_for_each() -> None:
    assert [p.prefer for p in plans("  - {preset: two, prefer: packed}\n")] == ["packed"] * 3


def test_one_preset_can_be_served_under_several_names() -> None:
    text = "  - preset: one\n  - {preset: one, name: a.example/b, exclusive: false}\n"
    names = [p.name for p in plans(text)]
    assert names == ["vendor.example/one", "a.example/b"]


@pytest.mark.parametrize(
    ("text", "line", "place", "words"),
    [
        (
            "  - {preset: onee}",
            3,
            "[0].preset",
            "found 'onee', did you mean 'one'?, expected one of near, one, two",
        ),
        ("  - {preset: xyz}", 3, "[0].preset", "found 'xyz', expected one of near, one, two"),
        ("  - {preset: 1}", 3, "[0].preset", "found 1, expected one of near, one, two"),
        ("  - {preset: [one]}", 3, "[0].preset", "found a list, expected one of near, one, two"),
        ("  - {preset: }", 3, "[0].preset", "found nothing, expected one of near, one, two"),
        ("  - {prest: one}", 3, "[0].prest", "did you mean 'preset'?"),
        ("  - {of: x, name: a.b/c}", 3, "[0].of", "found of without preset"),
        (
            "  - {preset: two, of: vendor.example/tow}",
            3,
            "[0].of",
            "found 'vendor.example/tow', did you mean 'vendor.example/two'?, expected one of 'vendor",
        ),
        ("  - {preset: two, of: vendor.example/}", 3, "[0].of", "expected one of 'vendor.example/two'"),
        ("  - {preset: two, of: ''}", 3, "[0].of", "expected one of 'vendor.example/two'"),
        (
            "  - preset: two\n    name: a.b/c",
            4,
            "[0].name",
            "found one name for 3 resources, expected of: one",
        ),
        ("  - preset: one\n    alocate: {}", 4, "[0].alocate", "did you mean 'allocate'?"),
        ("  - preset: one\n    shar: ", 4, "[0].shar", "has no 'shar', did you mean 'share'?"),
        ("  - preset: one\n    cdi: ", 4, "[0].cdi", "preset 'one' has no 'cdi'"),
        ("  - preset: one\n    numa: 9999", 4, "[0].numa", "found 9999, expected auto, off"),
        ("  - preset: one\n    name:", 3, "[0]", "expected the key 'name', which is missing"),
        ("  - preset: one\n    share: 4", 4, "[0].share", "found 4, expected a mapping"),
        ("  - preset: one\n    cdi: {name: '{{ device.id }}'}", 4, "[0].cdi", "expected the key 'kind'"),
        (
            "  - preset: one\n    allocate:\n      env: {A: '{{ devcies }}'}",
            5,
            "[0].allocate.env.A",
            "did you mean 'devices'?",
        ),
    ],
)
def test_an_error_beside_a_preset_names_the_file_s_own_line_and_path(
    text: str, line: int, place: str, words: str
) -> None:
    error = refused(text + "\n")
    assert str(error).startswith(f"plugin.yaml:{line}: resources{place}: ")
    assert words in str(error)


def test_the_path_of_an_error_counts_resources_as_the_file_does() -> None:
    error = refused("  - preset: two\n  - preset: one\n    numa: x\n")
    assert str(error).startswith("plugin.yaml:5: resources[1].numa: ")


def test_what_only_a_preset_and_the_file_together_make_wrong_says_so() -> None:
    error = refused("  - preset: near\n    numa: off\n")
    assert str(error) == (
        "plugin.yaml:3: resources[0].prefer: found 'numa' with numa off: no device would have a NUMA node "
        "(with preset 'near')"
    )


def test_the_same_name_from_a_preset_and_from_the_file_is_refused() -> None:
    error = refused("  - preset: near\n  - preset: one\n    name: vendor.example/near\n")
    assert str(error) == (
        "plugin.yaml:5: resources[1].name: found 'vendor.example/near' a second time, the first is on line 3"
    )
