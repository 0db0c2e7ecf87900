"""plugin.config.privileges: what --allow leaves out."""

import pytest

from plugin.config.load import load, load_all
from plugin.config.privileges import EXEC, HOST_MOUNTS, parse_privileges
from plugin.presets import PRESETS
from runtime.config_file import ConfigError

CAMERA = """\
version: 1
resources:
  - name: example.com/camera
    discover: [{glob: {paths: [/dev/video*]}}]
    allocate: {devices: [{host: "{{ device.path }}"}], env: {A: b}, cdi: [vendor.example/x=y]}
    cdi: {kind: vendor.example/camera, env: {A: b}}
    health: [{exists: /dev/x}, {file: {path: /x, equals: y}}]
"""


@pytest.mark.parametrize(
    ("text", "privilege", "place"),
    [
        (CAMERA.replace("glob: {paths: [/dev/video*]}", "exec: {command: [/x]}"), EXEC, "discover[0].exec"),
        (CAMERA.replace("exists: /dev/x", "exec: {command: [/x]}"), EXEC, "health[0].exec"),
        (CAMERA + "    pre_start: {exec: [/x]}\n", EXEC, "pre_start.exec"),
        (
            CAMERA.replace("env: {A: b}, cdi", "mounts: [{host: /etc}], cdi"),
            HOST_MOUNTS,
            "allocate.mounts[0]",
        ),
        (
            CAMERA.replace("env: {A: b}, cdi", "files: [{host: /x, container: /y, content: z}], cdi"),
            HOST_MOUNTS,
            "allocate.files[0]",
        ),
        (CAMERA.replace("env: {A: b}}", "mounts: [{host: /etc}]}"), HOST_MOUNTS, "cdi.mounts[0]"),
        (CAMERA.replace("env: {A: b}}", "env: {A: b}, directory: /etc/x}"), HOST_MOUNTS, "cdi.directory"),
    ],
)
def test_each_use_needs_its_privilege(text: str, privilege: str, place: str) -> None:
    load(text.encode(), "x.yaml", allowed=frozenset({privilege}))
    for allowed in (frozenset[str](), {EXEC, HOST_MOUNTS} - {privilege}):
        with pytest.raises(ConfigError) as caught:
            load(text.encode(), "x.yaml", allowed=frozenset(allowed))
        assert str(caught.value).startswith("x.yaml:")
        assert f"resources[0].{place}: found what needs the privilege '{privilege}'" in str(caught.value)


def test_device_nodes_variables_and_names_need_none() -> None:
    assert load(CAMERA.encode(), "x.yaml", allowed=frozenset())


def test_presets_that_need_host_mounts_are_few() -> None:
    refused: dict[str, str] = {}
    for name, file in PRESETS.items():
        try:
            load_all([(f"preset {name}", file.read_bytes())], allowed=frozenset())
        except ConfigError as error:
            refused[name] = str(error)
    assert set(refused) == {"gke-nvidia", "intel-gpu", "sample"}
    assert all(HOST_MOUNTS in problem for problem in refused.values())


def test_a_preset_in_a_file_is_refused_at_its_line() -> None:
    text = "version: 1\nresources:\n  - preset: sample\n"
    with pytest.raises(ConfigError, match=r"x\.yaml:3: .*--allow leaves out"):
        load(text.encode(), "x.yaml", allowed=frozenset({EXEC}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", set[str]()),
        ("exec", {EXEC}),
        (" host-mounts", {HOST_MOUNTS}),
        ("exec,host-mounts", {EXEC, HOST_MOUNTS}),
    ],
)
def test_the_list_of_privileges(text: str, found: set[str]) -> None:
    assert parse_privileges(text) == found


@pytest.mark.parametrize("text", ["", "exec,", "all", "host_mounts", "none,exec"])
def test_a_list_of_others_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected none, or some of exec,host-mounts"):
        parse_privileges(text)
