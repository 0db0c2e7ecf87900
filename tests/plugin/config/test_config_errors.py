"""Every way to get a configuration wrong: where the error points, and what it advises."""

import pytest

from plugin.config.load import load
from runtime.config_file import ConfigError

RESOURCE = """\
version: 1
resources:
  - name: example.com/camera
    discover:
      - static: {devices: [{name: one, path: /dev/one}]}
"""


def refused(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text if isinstance(text, bytes) else text.encode(), "plugin.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("addition", "path", "words"),
    [
        ("    alocate: {}", "alocate", "did you mean 'allocate'?"),
        ("    Match: x", "Match", "did you mean 'match'?"),
        ("    colour: red", "colour", "expected one of advertise_empty, allocate"),
        ("    preset: colla", "preset", "did you mean 'cola'?, expected one of "),
        ("    numa: -1", "numa", "found -1, expected auto, off, or a node's number"),
        ("    numa: 1024", "numa", "from 0 to 1023"),
        ("    numa: true", "numa", "found true, expected auto, off"),
        ("    numa: [0]", "numa", "found a list, expected true or false or a whole number or text"),
        ("    prefer: paked", "prefer", "did you mean 'packed'?"),
        ("    advertise_empty: 'yes'", "advertise_empty", "found 'yes', expected true or false"),
        ("    share: 4", "share", "found 4, expected a mapping"),
        ("    share: {replicas: 0}", "share.replicas", "found 0, expected a whole number >= 1"),
        ("    share: {replicas: 1.5}", "share.replicas", "found 1.5, expected a whole number"),
        ("    share: {max_per_container: 0}", "share.max_per_container", ">= 1"),
        ("    share: {replica: 2}", "share.replica", "did you mean 'replicas'?"),
        ("    health: [{exist: /x}]", "health[0].exist", "did you mean 'exists'?"),
        ("    health: [{}]", "health[0]", "found no probe, expected exactly one of exists, file"),
        ("    health: [{exists: dev/x}]", "health[0].exists", "expected an absolute path"),
        ("    health: [{exists: '{{ devices }}'}]", "health[0].exists", "unknown name 'devices'"),
        ("    id: '{{ device.id }}'", "id", "expected one of attrs, name, nodes, path"),
        ("    id: '{{ device.nme }}'", "id", "did you mean 'name'?"),
        ("    id: '{{ device.name '", "id", "not a template"),
        ("    match: [1]", "match", "found a list, expected text"),
        ("    match: '{{ device.name | shuffle }}'", "match", "unknown filter 'shuffle'"),
        ("    match: '{{ device.name.strp() }}'", "match", "did you mean 'strip'?"),
        ("    allocate: {env: {A: 1}}", "allocate.env.A", "found 1, expected text: put it in quotes"),
        ("    allocate: {env: {A: true}}", "allocate.env.A", "put it in quotes"),
        ("    allocate: {env: {A: }}", "allocate.env.A", "found nothing, expected text"),
        ("    allocate: {env: {1A: x}}", "allocate.env.1A", "expected a variable's name"),
        ("    allocate: {env: {A=B: x}}", "allocate.env.A=B", "expected a variable's name"),
        ("    allocate: {env: {A: '{{ device.id }}'}}", "allocate.env.A", "use devices"),
        ("    allocate: {env: {A: '{{ devcies }}'}}", "allocate.env.A", "did you mean 'devices'?"),
        (
            "    allocate: {env: {A: '{% set x = 1 %}'}}",
            "allocate.env.A",
            "expected only expressions, if and for",
        ),
        ("    allocate: {annotations: {'a b': x}}", "allocate.annotations.a b", "an annotation's key"),
        ("    allocate: {cdi: [camera]}", "allocate.cdi[0]", "vendor.example/class=device"),
        ("    allocate: {cdi: x}", "allocate.cdi", "found 'x', expected a list"),
        ("    allocate: {devices: [{host: dev/x}]}", "allocate.devices[0].host", "expected an absolute path"),
        ("    allocate: {devices: [{host: /a/../b}]}", "allocate.devices[0].host", "without '..'"),
        ("    allocate: {devices: [{}]}", "allocate.devices[0]", "expected the key 'host'"),
        (
            "    allocate: {devices: [{host: /x, permissions: rx}]}",
            "allocate.devices[0].permissions",
            "w (write)",
        ),
        (
            "    allocate: {mounts: [{host: /x, readonly: true}]}",
            "allocate.mounts[0].readonly",
            "'read_only'?",
        ),
        (
            "    allocate: {mounts: [{host: /x, create: dir}]}",
            "allocate.mounts[0].create",
            "'directory', 'file'",
        ),
        (
            "    allocate: {mounts: [{host: /x, container: y}]}",
            "allocate.mounts[0].container",
            "absolute path",
        ),
    ],
)
def test_a_wrong_key_or_value_of_a_resource_is_told_with_line_path_and_advice(
    addition: str, path: str, words: str
) -> None:
    error = refused(RESOURCE + addition + "\n")
    assert error.line == 6
    assert str(error).startswith(f"plugin.yaml:6: resources[0].{path}: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("source", "path", "words"),
    [
        ("{}", "", "found no source, expected exactly one of files, glob,"),
        (
            "{glob: {paths: [/x]}, files: {directory: /x}}",
            "",
            "found files and glob, expected exactly one of",
        ),
        ("[]", "", "found an empty list, expected a mapping"),
        ("{globe: {paths: [/x]}}", ".globe", "did you mean 'glob'?"),
        ("{kdf: {}}", ".kdf", "did you mean 'kfd'?"),
        ("{files: /etc/colas}", ".files", "found '/etc/colas', expected a mapping"),
        ("{files: {directory: colas}}", ".files.directory", "expected an absolute path"),
        ("{files: {path: /x}}", ".files.path", "expected one of directory"),
        ("{glob: {paths: []}}", ".glob.paths", "found an empty list"),
        ("{glob: {paths: /dev/x*}}", ".glob.paths", "expected a list"),
        ("{glob: {paths: [/dev/**]}}", ".glob.paths[0]", "without '**'"),
        ("{glob: {paths: [1]}}", ".glob.paths[0]", "put it in quotes"),
        ("{static: {devices: [{name: a}, {name: a}]}}", ".static.devices[1].name", "a second time"),
        ("{static: {devices: [{name: ''}]}}", ".static.devices[0].name", "length >= 1"),
        ("{static: {devices: [{name: a, numa: -1}]}}", ".static.devices[0].numa", ">= 0"),
        ("{static: {devices: [{name: a, path: x}]}}", ".static.devices[0].path", "absolute path"),
        ('{static: {devices: [{name: "a\\nb"}]}}', ".static.devices[0].name", "control characters"),
        ("{regex: {pattern: '(a+)+'}}", ".regex.pattern", "expected a regular expression without repeats"),
        ("{regex: {pattern: '('}}", ".regex.pattern", "found '(', expected a regular expression: missing )"),
        ("{regex: {pattern: a, directory: dev}}", ".regex.directory", "expected an absolute path"),
        ("{regex: {pattern: a, depth: 9}}", ".regex.depth", "found 9, expected"),
        ("{regex: {patern: a}}", ".regex.patern", "did you mean 'pattern'"),
        ("{regex: {directory: /dev}}", ".regex", "expected the key 'pattern', which is missing"),
        ("{group: {members: []}}", ".group.members", "found an empty list"),
        (
            "{group: {members: [{path: dev}]}}",
            ".group.members[0].path",
            "found 'dev', expected an absolute path",
        ),
        ("{group: {members: [{path: '/dev/**/x'}]}}", ".group.members[0].path", "without '**'"),
        (
            "{group: {members: [{path: /}]}}",
            ".group.members[0].path",
            "expected a pattern such as /dev/video*",
        ),
        (
            "{group: {members: [{path: /a, name: 'A b'}]}}",
            ".group.members[0].name",
            "expected a name such as",
        ),
        (
            "{group: {members: [{path: /a}, {path: /b, name: member0}]}}",
            ".group.members[1].name",
            "another member is called",
        ),
        ("{group: {members: [{path: /a, limit: 0}]}}", ".group.members[0].limit", "found 0, expected"),
        ("{usb: {vendors: [0x0403]}}", ".usb.vendors[0]", "found 1027, expected text: put it in quotes"),
        (
            "{usb: {products: ['zz']}}",
            ".usb.products[0]",
            "found 'zz', expected at most four hexadecimal digits",
        ),
        ("{usb: {serials: ['']}}", ".usb.serials[0]", "expected a serial number or a pattern"),
        ("{usb: {ports: ['usb1']}}", ".usb.ports[0]", "found 'usb1', expected a USB port or a pattern"),
        ("{usb: {classes: ['0e', '123']}}", ".usb.classes[1]", "found '123', expected a USB class"),
        ("{usb: {classes: [g]}}", ".usb.classes[0]", "found 'g', expected a USB class"),
        ("{usb: {with_nodes: [a/b]}}", ".usb.with_nodes[0]", "without slashes"),
        ("{usb: {vendor: ['0403']}}", ".usb.vendor", "did you mean 'vendors'"),
        ("{sysfs: {paths: [sys/x]}}", ".sysfs.paths[0]", "found 'sys/x', expected an absolute path"),
        ("{sysfs: {paths: [/sys/x, '/sys/**']}}", ".sysfs.paths[1]", "without '**'"),
        ("{sysfs: {paths: [/sys/x], pattern: '('}}", ".sysfs.pattern", "missing )"),
        (
            "{sysfs: {paths: [/sys/x], keep: [{file: /state}]}}",
            ".sysfs.keep[0].file",
            "expected a path below the device's",
        ),
        (
            "{sysfs: {paths: [/x], keep: [{file: a, equals: x, one_of: [y]}]}}",
            ".sysfs.keep[0].one_of",
            "one_of",
        ),
        (
            "{sysfs: {paths: [/x], keep: [{file: a, matches: '['}]}}",
            ".sysfs.keep[0].matches",
            "unterminated character set",
        ),
        (
            "{sysfs: {paths: [/x], keep: [{file: a, matches: '(a*)*b'}]}}",
            ".sysfs.keep[0].matches",
            "repeats in repeats",
        ),
        (
            "{sysfs: {paths: [/sys/x], attrs: {Model: m}}}",
            ".sysfs.attrs.Model",
            "found 'Model', expected a name such as",
        ),
        (
            "{sysfs: {paths: [/sys/x], attrs: {m: [a, /b]}}}",
            ".sysfs.attrs.m[1]",
            "found '/b', expected a path below",
        ),
        ("{sysfs: {paths: [/sys/x], locate: {m: /a}}}", ".sysfs.locate.m", "expected a path below"),
        (
            "{sysfs: {paths: [/x], attrs: {m: a}, locate: {m: b}}}",
            ".sysfs.locate.m",
            "found an attribute that attrs has too",
        ),
        ("{exec: {command: [ls]}}", ".exec.command[0]", "found 'ls', expected an absolute path"),
        ('{exec: {command: [/bin/ls, "a\\0b"]}}', ".exec.command[1]", "expected text without NUL"),
        (
            "{exec: {command: [/bin/ls], timeout: 20s}}",
            ".exec.timeout",
            "found '20s', expected from 100ms to 15s",
        ),
        ("{exec: {command: [/bin/ls], interval: often}}", ".exec.interval", "expected a duration such as"),
        ("{exec: {command: []}}", ".exec.command", "found an empty list"),
        ("{nvidia: {kind: gpu}}", ".nvidia.kind", "found 'gpu', expected one of"),
        ("{nvidia: {library: libnvidia-ml.so.1}}", ".nvidia.library", "expected an absolute path"),
        ("{nvidia: {mig: true}}", ".nvidia.mig", "found an unknown key 'mig'"),
        ("{pci: {vendors: ['80861']}}", ".pci.vendors[0]", "found '80861'"),
        ("{pci: {devices: ['1889', zz]}}", ".pci.devices[1]", "four hexadecimal digits"),
        ("{pci: {classes: ['020']}}", ".pci.classes[0]", "0x02 or 0x030000"),
        ("{pci: {addresses: ['3b:00']}}", ".pci.addresses[0]", "0000:3b:00.0"),
        ("{pci: {drivers: ['a/b']}}", ".pci.drivers[0]", "without slashes"),
        ("{pci: {drivers: [a, a]}}", ".pci.drivers[1]", "a second time"),
        ("{pci: {functions: vf}}", ".pci.functions", "'all', 'physical', 'virtual'"),
        ("{pci: {vendor: ['8086']}}", ".pci.vendor", "vendors"),
        ("{net: {pf_names: ['eth0#3-1']}}", ".net.pf_names[0]", "eth0#0-3,5"),
        ("{net: {pf_addresses: ['3b#1']}}", ".net.pf_addresses[0]", "0000:3b:00.0"),
        ("{net: {pf_names: [eth0], functions: physical}}", ".net.pf_names", "functions: physical"),
        ("{net: {kinds: []}}", ".net.kinds", "length >= 1"),
        ("{net: {kinds: [usb]}}", ".net.kinds[0]", "'hardware'"),
        ("{net: {interfaces: ['']}}", ".net.interfaces[0]", "name or a pattern"),
        ("{net: {rdma: maybe}}", ".net.rdma", "true or false"),
        ("{infiniband: {names: ['a b']}}", ".infiniband.names[0]", "white space"),
        ('{infiniband: {link_types: ["ro\\tce"]}}', ".infiniband.link_types[0]", "found 'ro\\tce'"),
        ("{drm: {names: ['/dev/dri/card0']}}", ".drm.names[0]", "without slashes"),
        ("{kfd: {partitions: 1}}", ".kfd.partitions", "true or false"),
    ],
)
def test_an_error_in_a_source_has_its_line_path_and_advice(source: str, path: str, words: str) -> None:
    error = refused(f"version: 1\nresources:\n  - name: example.com/x\n    discover:\n      - {source}\n")
    assert str(error).startswith(f"plugin.yaml:5: resources[0].discover[0]{path}: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("camera", "expected DOMAIN/NAME with one slash"),
        ("a.b/c/d", "expected DOMAIN/NAME with one slash"),
        ("Example.com/x", "lower-case letters"),
        ("-a.com/x", "lower-case letters"),
        ("/x", "lower-case letters"),
        ("kubernetes.io/x", "Kubernetes' own"),
        ("gpu.kubernetes.io/x", "Kubernetes' own"),
        ("requests.a.com/x", "without the prefix 'requests.'"),
        ("a.com/", "a letter or digit at both ends"),
        ("a.com/x-", "a letter or digit at both ends"),
        ("a.com/x y", "a letter or digit at both ends"),
        ("a.com/" + "x" * 64, "at most 63 characters"),
        ("a" * 245 + "/x", "at most 244 characters"),
    ],
)
def test_a_resource_name_that_the_kubelet_would_refuse_is_refused_at_load(name: str, words: str) -> None:
    error = refused(RESOURCE.replace("example.com/camera", f"'{name}'"))
    assert (error.line, error.path) == (3, ("resources", 0, "name"))
    assert words in str(error)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "found an empty file"),
        ("# nothing\n\n", 1, "found an empty file"),
        ("- 1\n", 1, "found a list, expected a mapping"),
        ("nothing\n", 1, "found 'nothing', expected a mapping"),
        ("version: 2\nresources: []\n", 1, "version: found 2, expected 1"),
        ("version: '1'\nresources: []\n", 1, "version: found '1', expected a whole number"),
        (RESOURCE.removeprefix("version: 1\n"), 1, "expected the key 'version', which is missing"),
        ("version: 1\n", 1, "expected the key 'resources', which is missing"),
        ("version: 1\nresources: []\n", 2, "found an empty list"),
        ("version: 1\nresource: []\n", 2, "did you mean 'resources'?"),
        ("version: 1\nversion: 1\n", 2, "found the key 'version' a second time"),
        ("a: b: c\n", 1, "not YAML: mapping values are not allowed here"),
        ("a: 1\n b: 2\n", 2, "not YAML"),
        ("a: 'x\n", 2, "not YAML"),
        ("a: [1, 2\n", 2, "not YAML"),
        ("a:\n\t- 1\n", 2, "not YAML"),
        ("version: 1\n---\nversion: 1\n", 2, "found a second document"),
        ("a: !!python/object/apply:os.system [x]\n", 1, "found the tag"),
        ("a: !mine x\n", 1, "found the tag !mine"),
        ("<<: {a: 1}\n", 1, "found a merge key"),
        ("? [a]\n: 1\n", 1, "found a key that is not plain text"),
        ("a: *x\n", 1, "alias *x has no anchor before it"),
        ("a: &x [*x]\n", 1, "alias *x has no anchor before it"),
        ("[" * 40 + "]" * 40, 1, "more than 32 levels"),
        (b"version: 1\nname: \xff\n", 2, "found byte 0xff, expected UTF-8"),
        (b"version: 1\nname: a\x01\n", 2, "found character U+0001"),
    ],
)
def test_a_file_that_is_no_configuration_is_told_with_its_line(
    text: str | bytes, line: int, words: str
) -> None:
    error = refused(text)
    assert error.line == line
    assert words in str(error)


def test_a_resource_given_twice_names_the_line_of_the_first() -> None:
    error = refused(RESOURCE + RESOURCE.split("resources:\n")[1])
    assert str(error) == (
        "plugin.yaml:6: resources[1].name: found 'example.com/camera' a second time, the first is on line 3"
    )


def test_a_file_that_is_too_large_is_refused_unread() -> None:
    assert "expected at most" in str(refused(b"#" * (256 * 1024 + 1)))


def test_aliases_that_expand_without_end_are_refused_quickly() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    assert "aliases expanded" in str(refused(bomb))


def test_an_error_is_one_line_without_control_characters() -> None:
    error = refused(RESOURCE + '    "\\e[31m\\nred": 1\n')
    assert str(error).isprintable()


def test_a_template_that_is_too_long_is_refused() -> None:
    assert "length <= 8192" in str(refused(RESOURCE + f"    id: '{'x' * 9000}'\n"))
