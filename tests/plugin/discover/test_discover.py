"""`devicelens discover`: everything that would be advertised and given, and nothing is done."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from devicelens import main
from harness.hosttree import HostTree
from harness.machines import Machine

CAMERAS = """\
version: 1
resources:
  - name: example.com/camera
    discover: [{glob: {paths: ["/dev/video*"]}}]
    share: {replicas: 2, max_per_container: 2}
    numa: 1
    health: [{exists: "/run/{{ device.id }}.ok"}]
    allocate:
      env: {CAMERAS: "{{ devices | map(attribute='id') | join(',') }}"}
      devices: [{host: "{{ device.path }}"}, {host: /dev/mediactl, optional: true}]
      mounts: [{host: "/run/{{ device.id }}", container: "/run/{{ device.id }}", create: directory}]
      files: [{host: "/run/x/{{ device.id }}", container: "/etc/{{ device.id }}", content: hi, mode: "0400"}]
      annotations: {"example.com/x": "y"}
    cdi: {kind: vendor.example/camera, devices: [{host: "{{ device.path }}"}]}
    pre_start: {exec: [/usr/bin/reset, "{{ device.path }}"]}
  - name: example.com/everything
    discover: [{regex: {pattern: "(?P<kind>[a-z]+)[0-9]+"}}]
"""


@pytest.fixture
def cameras(tree: HostTree) -> Path:
    for path in ("/dev/video0", "/dev/video1", "/run/video0.ok", "/dev/x9"):
        tree.file(path)
    return tree.root


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["discover", *map(str, arguments)])


def discover(tmp_path: Path, host: Path, text: str, *arguments: str) -> dict[str, Any]:
    file = tmp_path / "plugin.yaml"
    file.write_text(text)
    result = run("--config", file, "--host-root", host, "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def snapshot(root: Path) -> list[tuple[str, int, int]]:
    paths = (path for path in sorted(root.rglob("*")))
    return [(str(path), status.st_mode, status.st_mtime_ns) for path in paths for status in [path.lstat()]]


def test_the_document_has_everything_and_nothing_is_written(tmp_path: Path, cameras: Path) -> None:
    before = snapshot(cameras)
    document = discover(tmp_path, cameras, CAMERAS)
    assert snapshot(cameras) == before
    camera, everything = document["resources"]
    healthy, sick = camera["devices"]
    assert healthy == {
        "id": "video0",
        "ids": ["video0::0", "video0::1"],
        "name": "video0",
        "path": "/dev/video0",
        "nodes": [],
        "numa_nodes": [1],
        "attributes": {},
        "health": "Healthy",
        "reason": "",
    }
    assert (sick["health"], sick["reason"]) == ("Unhealthy", "/run/video1.ok is not there")
    assert camera["registers"] is True
    # Without a request: the first healthy one.
    assert camera["allocations"] == [
        {
            "ids": ["video0::0"],
            "answer": {
                "envs": {"CAMERAS": "video0"},
                "mounts": [
                    {"container_path": "/run/video0", "host_path": "/run/video0", "read_only": False},
                    {"container_path": "/etc/video0", "host_path": "/run/x/video0", "read_only": True},
                ],
                "devices": [
                    {"container_path": "/dev/video0", "host_path": "/dev/video0", "permissions": "rw"}
                ],
                "annotations": {"example.com/x": "y"},
                "cdi_devices": [{"name": "vendor.example/camera=video0"}],
            },
            "refused": None,
            "dropped": ["/dev/mediactl"],
            "makes": [{"path": "/run/video0", "kind": "directory"}],
            "writes": [{"path": "/run/x/video0", "mode": "0400", "content": "hi"}],
            "pre_start": [["/usr/bin/reset", "/dev/video0"]],
        }
    ]
    assert camera["cdi"]["path"] == "/var/run/cdi/vendor.example-camera_devicelens_example.com_camera.json"
    assert [device["name"] for device in camera["cdi"]["content"]["devices"]] == ["video0", "video1"]
    assert everything["conflicts"] == [
        {"device": "video0", "resource": "example.com/camera"},
        {"device": "video1", "resource": "example.com/camera"},
    ]
    assert [device["id"] for device in everything["devices"]] == ["x9"]
    assert everything["devices"][0]["attributes"]["kind"] == "x"
    result = run("--config", tmp_path / "plugin.yaml", "--host-root", cameras, "-o", "yaml")
    assert yaml.safe_load(result.stdout) == document


def test_requests_are_answered_or_refused_as_by_allocate(tmp_path: Path, cameras: Path) -> None:
    document = discover(
        tmp_path,
        cameras,
        CAMERAS,
        *("--allocate", "example.com/camera=video0::0,video0::1"),
        *("--allocate", "example.com/camera=video1::0"),
        *("--allocate", "example.com/camera=video0::0,video0::1,video7::0"),
    )
    first, sick, many = document["resources"][0]["allocations"]
    assert first["answer"]["envs"] == {"CAMERAS": "video0"}
    assert (sick["answer"], sick["refused"]) == (
        None,
        {
            "code": "FAILED_PRECONDITION",
            "message": "example.com/camera: 'video1::0' is unhealthy (/run/video1.ok is not there)",
        },
    )
    assert many["refused"]["code"] == "INVALID_ARGUMENT"
    assert document["resources"][1]["allocations"][0]["ids"] == ["x9"]


def test_a_family_has_a_member_for_each_name_and_runs_its_program_once(tmp_path: Path, host: Path) -> None:
    log, script = tmp_path / "log", tmp_path / "find"
    found = [{"name": f"{kind}{n}", "attrs": {"kind": kind}} for kind, n in ("a0", "b0", "b1", "c0")]
    script.write_text(f"#!/bin/sh\necho run >> {log}\ncat <<'END'\n{json.dumps(found)}\nEND\n")
    script.chmod(0o755)
    text = f"""\
version: 1
resources:
  - name: "example.com/{{{{ device.attrs.kind }}}}"
    discover: [{{exec: {{command: [{script}]}}}}]
"""
    resources = discover(tmp_path, host, text)["resources"]
    counts = {resource["name"]: len(resource["devices"]) for resource in resources}
    assert counts == {"example.com/a": 1, "example.com/b": 2, "example.com/c": 1}
    assert {r["family"] for r in resources} == {"example.com/{{ device.attrs.kind }}"}
    assert log.read_text() == "run\n"


def test_the_table(tmp_path: Path, cameras: Path) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text(CAMERAS)
    result = run("--config", file, "--host-root", cameras)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "example.com/camera: 2 devices, 1 healthy, advertised as 4"
    assert lines[1].split() == ["DEVICE", "HEALTH", "NUMA", "PATH", "REASON"]
    assert "  Allocate video0::0:" in lines
    for line in (
        "device /dev/video0 rw",
        "mount /run/x/video0 at /etc/video0 ro",
        "optional, not there: /dev/mediactl",
        "would create the directory /run/video0",
        "would write /run/x/video0 (0400): hi",
        "would run before each start: /usr/bin/reset /dev/video0",
    ):
        assert f"    {line}" in lines
    assert "  conflict: video0 is kept by example.com/camera" in lines
    assert any("would write the CDI specification" in line for line in lines)


def test_hostile_names_reach_no_terminal(host: Path, tree: HostTree) -> None:
    for name in ("x\x1b[2J\u202e", "y\u202e"):
        tree.file(f"/etc/colas/{name}")
    for output in ("table", "json", "yaml"):
        text = run("--preset", "cola", "--host-root", host, "-o", output).stdout
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert text.isascii()


def test_resources_without_devices_and_sources_that_fail(host: Path, tree: HostTree) -> None:
    result = run("--preset", "cola", "--host-root", host)
    assert result.exit_code == 0
    assert result.stdout == ("myway5.com/cola: no devices, waits for some\n  note: /etc/colas is not there\n")
    tree.file("/etc/colas")
    result = run("--preset", "cola", "--preset", "sample", "--host-root", host)
    assert result.exit_code == 1
    assert "myway5.com/cola: scan failed: /etc/colas: Not a directory" in result.stdout
    assert "example.com/resource: 2 devices, 2 healthy" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "expected --config FILE or --preset NAME"),
        (["--preset", "colla"], 2, "did you mean 'cola'?"),
        (["--preset", "cola", "--allocate", "x"], 2, "expected RESOURCE=ID"),
        (["--preset", "cola", "--allocate", "myway5.com/col=a"], 2, "did you mean 'myway5.com/cola'?"),
        (["--config", "/no/such"], 1, "devicelens: /no/such: cannot be read: No such file or directory"),
    ],
)
def test_an_error_is_one_clear_line(host: Path, arguments: list[str], status: int, words: str) -> None:
    result = run(*arguments, "--host-root", host)
    assert result.exit_code == status
    assert words in result.output
    assert "Traceback" not in result.output


def test_each_probe_runs_once(tmp_path: Path, host: Path) -> None:
    log, script = tmp_path / "log", tmp_path / "probe"
    script.write_text(f"#!/bin/sh\necho $1 >> {log}\ntest $1 = a || {{ echo broken >&2; exit 1; }}\n")
    script.chmod(0o755)
    text = f"""\
version: 1
resources:
  - name: example.com/x
    discover: [{{static: {{devices: [{{name: a}}, {{name: b}}]}}}}]
    health:
      - {{exec: {{command: [{script}, "{{{{ device.id }}}}"]}}, interval: 20s, timeout: 20s}}
      - {{http: {{url: "http://127.0.0.1:1/{{{{ device.id }}}}"}}}}
"""
    first, second = discover(tmp_path, host, text)["resources"][0]["devices"]
    assert sorted(log.read_text().split()) == ["a", "b"]
    assert "http://127.0.0.1:1/a: " in first["reason"]
    assert second["reason"] == f"{script}: status 1: broken"


def test_json_needs_neither_rich_nor_grpc(host: Path) -> None:
    code = (
        "import sys; from devicelens import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert 'rich' not in sys.modules and 'grpc' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "discover", "--preset", "sample", "-o", "json", "--host-root", host],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_table_has_no_empty_attribute_and_no_note_twice(
    tmp_path: Path, host: Path, tree: HostTree
) -> None:
    tree.file("/dev/a1")
    text = """\
version: 1
resources:
  - name: example.com/thing
    discover: [{regex: {pattern: "(?P<kind>a)(?P<more>x)?1"}}]
  - name: example.com/none
    discover: [{pci: {vendors: ["0001"]}}, {pci: {vendors: ["0002"]}}]
"""
    file = tmp_path / "plugin.yaml"
    file.write_text(text)
    result = run("--config", file, "--host-root", host)
    assert "kind=a\n" in result.stdout
    assert "more=" not in result.stdout
    assert result.stdout.count("note: ") == 1


CARDS = """\
version: 1
resources:
  - name: example.com/card
    discover: [{pci: {vendors: ["10de"]}}, {pci: {vendors: ["15b3"], drivers: [vfio-pci]}}]
    match: "{{ device.attrs.device != '2330' }}"
"""


@pytest.fixture
def cards(machine: Machine) -> Path:
    machine.function("0000:19:00.0", "10de", "2330", "030200", driver="nvidia")
    machine.function("0000:1a:00.0", "10de", "2331", "030200", driver="nvidia")
    machine.function("0000:3b:00.0", "15b3", "101d", "020000", driver="mlx5_core")
    for number in range(12):
        machine.function(f"0000:00:{number:02x}.0", "8086", "0e00", "060400")
    return machine.tree.root


def test_each_candidate_that_is_not_offered_has_a_reason(tmp_path: Path, cards: Path) -> None:
    (resource,) = discover(tmp_path, cards, CARDS)["resources"]
    assert [device["id"] for device in resource["devices"]] == ["0000:1a:00.0"]
    reasons = {(one["device"], one["reason"]) for one in resource["not_offered"]}
    assert {pair for pair in reasons if not pair[0].startswith("0000:00:")} == {
        ("0000:19:00.0", "match is false"),
        ("0000:3b:00.0", "vendors: found '15b3', expected '10de'"),
        ("0000:3b:00.0", "drivers: found 'mlx5_core', expected 'vfio-pci'"),
    }
    assert resource["not_listed"] == 0
    result = run("--config", tmp_path / "plugin.yaml", "--host-root", cards)
    bridges = ", ".join(f"0000:00:0{n}.0" for n in range(8))
    assert [line for line in result.stdout.splitlines() if "not offered" in line] == [
        f"  not offered: {bridges} and 4 more: vendors: found '8086', expected '10de'",
        f"  not offered: {bridges} and 4 more: vendors: found '8086', expected '15b3'",
        "  not offered: 0000:19:00.0: match is false",
        "  not offered: 0000:3b:00.0: vendors: found '15b3', expected '10de'",
        "  not offered: 0000:3b:00.0: drivers: found 'mlx5_core', expected 'vfio-pci'",
    ]


def test_what_a_family_does_not_offer_is_with_the_family(tmp_path: Path, cards: Path) -> None:
    text = CARDS.replace("example.com/card", '"example.com/{{ device.attrs.driver }}"')
    family, member = discover(tmp_path, cards, text)["resources"]
    assert (family["name"], family["devices"], len(family["not_offered"])) == (family["family"], [], 27)
    assert (member["name"], member["not_offered"]) == ("example.com/nvidia", [])
    result = run("--config", tmp_path / "plugin.yaml", "--host-root", cards)
    first = result.stdout.partition("\nexample.com/nvidia: ")[0]
    assert first.startswith(f"{family['name']}: what none of its resources offers\n")
    assert first.count("  not offered: ") == result.stdout.count("  not offered: ") == 5


def test_candidates_that_are_not_offered_are_bounded(tmp_path: Path, tree: HostTree) -> None:
    for number in range(400):
        tree.file(f"/sys/devices/d{number}/state", f"{number % 30}")
    tree.file("/sys/devices/x\x1b[2J/state", "0\x1b[2J\u202e")
    text = """\
version: 1
resources:
  - name: example.com/x
    discover: [{sysfs: {paths: ["/sys/devices/*"], keep: [{file: state, equals: up}]}}]
  - name: example.com/y
    discover: [{glob: {paths: ["/sys/devices/d*"]}}]
    match: "{{ device.name == 'd7' }}"
"""
    first, second = discover(tmp_path, tree.root, text)["resources"]
    for resource, count in ((first, 401), (second, 399)):
        assert len(resource["not_offered"]) == 256
        assert resource["not_listed"] == count - 256
    result = run("--config", tmp_path / "plugin.yaml", "--host-root", tree.root)
    assert result.stdout.count("  not offered: ") == 16 + 1 + 1 + 1
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout
