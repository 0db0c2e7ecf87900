"""Errors in a configuration: the line and path that they point to, and the advice.

Types, ranges, and patterns of single keys are in docs/plugin.schema.json, which another test compares with
the model; here one key stands for each kind of check.
"""

import pytest

from plugin.config.load import load
from runtime.config_file import ConfigError

RESOURCE = """\
version: 1
resources:
  - name: example.com/camera
    discover:
      - glob: {paths: [/dev/video*]}
"""
GPUS = RESOURCE.replace("glob: {paths: [/dev/video*]}", "nvidia: {}")


def refused(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text if isinstance(text, bytes) else text.encode(), "plugin.yaml")
    return caught.value


def check_error(text: str, line: int, path: str, words: str) -> None:
    error = refused(text)
    assert str(error).startswith(f"plugin.yaml:{line}: resources[0]{path}: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("addition", "path", "words"),
    [
        ("alocate: {}", "alocate", "did you mean 'allocate'?"),
        ("colour: red", "colour", "expected one of advertise_empty, allocate"),
        ("numa: 1024", "numa", "found 1024, expected auto, off, or a node's number from 0 to 1023"),
        ("numa: true", "numa", "found true, expected auto, off"),
        ("numa: [0]", "numa", "found a list, expected true or false or a whole number or text"),
        ("prefer: paked", "prefer", "did you mean 'packed'?"),
        ("prefer: numa\n    numa: off", "prefer", "found 'numa' with numa off"),
        ("advertise_empty: 'yes'", "advertise_empty", "found 'yes', expected true or false"),
        ("share: {replicas: 1.5}", "share.replicas", "found 1.5, expected a whole number"),
        ("share: {id: '{{ id }}-{{ n }}'}", "share.id", "found id without replicas"),
        ("share: {replicas: 2, id: '{{ id }}'}", "share.id", "does not use n: all replicas"),
        ("share: {replicas: 2, id: '{{ device.id }}{{ n }}'}", "share.id", "unknown name 'device'"),
        ("id: '{{ device.id }}'", "id", "expected one of attrs, name, nodes, path"),
        ("id: '{{ device.attrs.majr }}'", "id", "did you mean 'major'?"),
        ("id: '{{ node }}'", "id", "unknown name 'node'"),
        ("id: ''", "id", "it is empty"),
        (f"id: '{'x' * 9000}'", "id", "length <= 8192"),
        ("match: {{ device.name == 'x' }}", "match", 'put a template in quotes, as in "{{ … }}"'),
        ("allocate: {env: {A: {{ ids }}}}", "allocate.env.A", "put a template in quotes"),
        (
            "health: [{exists: /x, interval: 5}]",
            "health[0].interval",
            "found 5, expected a duration with its",
        ),
        ("health: [{exists: /x, interval: 1.5}]", "health[0].interval", "unit: write 1.5s"),
        ("pre_start: {exec: [/x], timeout: 20}", "pre_start.timeout", "write 20s"),
        ("match: sometimes", "match", "expected a condition such as {{ device.name == 'video0' }}"),
        ("match: '{{ resource }}'", "match", "unknown name 'resource'"),
        ("health: [{exists: /x}, {exists: /x, interval: 1s}]", "health[1]", "what item 0 checks already"),
        ("allocate: {env: {A: 1}}", "allocate.env.A", "found 1, expected text: put it in quotes"),
        ("allocate: {env: {A: }}", "allocate.env.A", "found nothing, expected text"),
        ("allocate: {env: {1A: x}}", "allocate.env.1A", "expected a variable's name"),
        ("allocate: {env: {A: '{{ device.id }}'}}", "allocate.env.A", "use devices"),
        (
            "allocate: {devices: [{host: '{{ node.path }}'}]}",
            "allocate.devices[0].host",
            "found node.path, but node is text, which has only the methods count, endswith,",
        ),
        (
            "allocate: {env: {A: '{{ resource.name }}'}}",
            "allocate.env.A",
            "found resource.name, but resource is text, which has only the methods",
        ),
        ("allocate: {env: {A: '{{ devices }}'}}", "allocate.env.A", "gives a list, expected text"),
        (
            "share: {replicas: 2, id: '{{ id.name }}-{{ n }}'}",
            "share.id",
            "found id.name, but id is text",
        ),
        ("share: {replicas: 2, id: '{{ id }}-{{ n.x }}'}", "share.id", "found n.x, but n is a number"),
        ("allocate: {env: {A: '{{ node }}'}}", "allocate.env.A", "unknown name 'node'"),
        ("allocate: {annotations: {'a b': x}}", "allocate.annotations.a b", "an annotation's key"),
        ("allocate: {cdi: [camera]}", "allocate.cdi[0]", "vendor.example/class=device"),
        ("allocate: {devices: [{host: dev/x}]}", "allocate.devices[0].host", "expected an absolute path"),
        ("allocate: {devices: [{host: 'dev/{{ node }}'}]}", "allocate.devices[0].host", "absolute path"),
        ("allocate: {devices: [{host: /a/../b}]}", "allocate.devices[0].host", "without '..'"),
        (
            "allocate: {devices: [{host: /x, permissions: rx}]}",
            "allocate.devices[0].permissions",
            "w (write)",
        ),
        ("allocate: {devices: [{host: /x, container: /}]}", "allocate.devices[0].container", "below '/'"),
        ("allocate: {mounts: [{host: '{{ node }}'}]}", "allocate.mounts[0].host", "unknown name 'node'"),
        (
            "allocate: {mounts: [{host: /x, create: file, optional: true}]}",
            "allocate.mounts[0].optional",
            "beside create",
        ),
        (
            "allocate: {mounts: [{host: /a, container: /x}, {host: /b, container: /x/}]}",
            "allocate.mounts[1]",
            "puts something at /x again, the first is mounts[0]",
        ),
        (
            "allocate: {devices: [{host: /x}], files: [{host: /y, container: /x, content: a}]}",
            "allocate.files[0]",
            "the first is devices[0]",
        ),
        (
            "allocate: {files: [{host: /y, container: /x, content: a, mode: '4755'}]}",
            "allocate.files[0].mode",
            "expected three octal digits such as '0444'",
        ),
        (
            "allocate: {files: [{host: /y, container: /x, content: '{{ ids | join }}'}]}",
            "allocate.files[0].host",
            "one file for all containers, but its content differs",
        ),
        ("cdi: {kind: camera, env: {A: b}}", "cdi.kind", "expected a CDI kind such as vendor.example/class"),
        ("cdi: {kind: a.b/c, env: {A: b}, name: x}", "cdi.name", "does not use device"),
        ("cdi: {kind: a.b/c}", "cdi", "gives containers nothing, expected env, devices or mounts"),
        ("cdi: {kind: a.b/c, env: {A: '{{ ids }}'}}", "cdi.env.A", "unknown name 'ids'"),
        ("pre_start: {exec: [reset]}", "pre_start.exec[0]", "expected an absolute path"),
        ("pre_start: {exec: [/bin/true], timeout: 30s}", "pre_start.timeout", "expected from 10ms to 28s"),
        ("pre_start: {exec: [/bin/true, '{{ node }}']}", "pre_start.exec[1]", "unknown name 'node'"),
    ],
)
def test_an_error_in_a_resource_has_its_line_its_path_and_advice(
    addition: str, path: str, words: str
) -> None:
    check_error(f"{RESOURCE}    {addition}\n", 6, f".{path}", words)


@pytest.mark.parametrize(
    ("probe", "path", "words"),
    [
        ("{}", "", "found no probe, expected exactly one of exists, file"),
        ("{exists: /x, carrier: eth0}", "", "found exists and carrier, expected exactly one of exists, file"),
        ("{exists: '{{ device.path', interval: 5s}", ".exists", "not a template"),
        ("{exists: '{{ devices }}'}", ".exists", "unknown name 'devices'"),
        ("{exists: /x, interval: soon}", ".interval", "expected a duration such as 250ms"),
        ("{exists: /x, interval: 1ms}", ".interval", "expected from 100ms to 1d"),
        ("{exists: /x, interval: 2s, timeout: 3s}", ".timeout", "expected at most the interval, 2s"),
        ("{exists: /x, timeout: 31s}", ".timeout", "expected at most 30s, or an interval that is as long"),
        ("{file: {path: /x}}", ".file", "found no expectation, expected one of equals, one_of, matches"),
        ("{file: {path: /x, equals: a, one_of: [a]}}", ".file.one_of", "found equals and one_of"),
        ("{file: {path: /x, one_of: []}}", ".file.one_of", "which no content satisfies"),
        ("{file: {path: /x, equals: ' a'}}", ".file.equals", "without white space at its ends"),
        ("{file: {path: /x, not_matches: '(?=a)b'}}", ".file.not_matches", "invalid perl operator"),
        ("{file: {path: /x, at_least: 5, at_most: 4}}", ".file.at_most", "found 4, expected at least 5"),
        ("{file: {path: /x, at_least: .nan}}", ".file.at_least", "expected a finite number"),
        ("{carrier: eth0/1}", ".carrier", "expected a network interface's name"),
        ("{http: {url: localhost:80}}", ".http.url", "expected an address such as http://"),
        ("{http: {url: 'ftp://{{ device.name }}'}}", ".http.url", "begins with http:// or https://"),
        ("{http: {url: 'http://x', status: []}}", ".http.status", "which no answer satisfies"),
        ("{http: {url: 'http://x', status: [42]}}", ".http.status[0]", "expected a status from 100 to 599"),
        ("{xid: {}}", ".xid", "expected nvidia in discover"),
    ],
)
def test_an_error_in_a_probe(probe: str, path: str, words: str) -> None:
    check_error(f"{RESOURCE}    health: [{probe}]\n", 6, f".health[0]{path}", words)


@pytest.mark.parametrize(
    ("probe", "path", "words"),
    [
        ("xid: {}, interval: 5s", "interval", "found interval beside xid, which is reported by events"),
        ("xid: {}, failures: 2", "failures", "found failures beside xid"),
        ("xid: {quiet: 0s}", "xid.quiet", "expected from 1s to 1w"),
        ("xid: {ignore: [-1]}", "xid.ignore[0]", "expected an XID"),
    ],
)
def test_an_error_in_a_probe_of_events(probe: str, path: str, words: str) -> None:
    check_error(f"{GPUS}    health: [{{{probe}}}]\n", 6, f".health[0].{path}", words)


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
        ("{files: /etc/colas}", ".files", "found '/etc/colas', expected a mapping"),
        ("{glob: {paths: [/dev/**]}}", ".glob.paths[0]", "without '**'"),
        ("{glob: {paths: [/]}}", ".glob.paths[0]", "expected a pattern such as /dev/video*"),
        ("{static: {devices: [{name: a}, {name: a}]}}", ".static.devices[1].name", "a second time"),
        ('{static: {devices: [{name: "a\\nb"}]}}', ".static.devices[0].name", "control characters"),
        ("{regex: {pattern: 'a**'}}", ".regex.pattern", "expected a regular expression in RE2's syntax: bad"),
        ("{group: {members: [{path: /a, name: 'A b'}]}}", ".group.members[0].name", "a name such as"),
        (
            "{group: {members: [{path: /a}, {path: /b, name: member0}]}}",
            ".group.members[1].name",
            "another member is called",
        ),
        ("{usb: {vendors: [0x0403]}}", ".usb.vendors[0]", "found 1027, expected text: put it in quotes"),
        ("{usb: {products: ['zz']}}", ".usb.products[0]", "expected at most four hexadecimal digits"),
        ("{usb: {serials: ['']}}", ".usb.serials[0]", "expected a serial number or a pattern"),
        ("{usb: {ports: ['usb1']}}", ".usb.ports[0]", "found 'usb1', expected a USB port or a pattern"),
        ("{usb: {classes: ['0e', '123']}}", ".usb.classes[1]", "found '123', expected a USB class"),
        ("{usb: {with_nodes: [a/b]}}", ".usb.with_nodes[0]", "without slashes"),
        ("{sysfs: {paths: [/x], keep: [{file: /a}]}}", ".sysfs.keep[0].file", "a path below the device's"),
        (
            "{sysfs: {paths: [/x], keep: [{file: a, equals: x, one_of: [y]}]}}",
            ".sysfs.keep[0].one_of",
            "one_of",
        ),
        ("{sysfs: {paths: [/x], keep: [{file: a, matches: '['}]}}", ".sysfs.keep[0].matches", "missing ]"),
        ("{sysfs: {paths: [/x], attrs: {Model: m}}}", ".sysfs.attrs.Model", "expected a name such as"),
        ("{sysfs: {paths: [/x], attrs: {m: [a, /b]}}}", ".sysfs.attrs.m[1]", "expected a path below"),
        (
            "{sysfs: {paths: [/x], attrs: {m: a}, locate: {m: b}}}",
            ".sysfs.locate.m",
            "found an attribute that attrs has too",
        ),
        ("{exec: {command: [ls]}}", ".exec.command[0]", "found 'ls', expected an absolute path"),
        ('{exec: {command: [/bin/ls, "a\\0b"]}}', ".exec.command[1]", "expected text without NUL"),
        ("{exec: {command: [/x], timeout: 20s}}", ".exec.timeout", "found '20s', expected from 100ms to 15s"),
        ("{pci: {classes: ['020']}}", ".pci.classes[0]", "0x02 or 0x030000"),
        ("{pci: {addresses: ['3b:00']}}", ".pci.addresses[0]", "0000:3b:00.0"),
        ("{pci: {drivers: [a, a]}}", ".pci.drivers[1]", "a second time"),
        ("{net: {pf_names: ['eth0#3-1']}}", ".net.pf_names[0]", "eth0#0-3,5"),
        ("{net: {pf_addresses: ['3b#1']}}", ".net.pf_addresses[0]", "0000:3b:00.0"),
        ("{net: {pf_names: [eth0], functions: physical}}", ".net.pf_names", "functions: physical"),
        ('{infiniband: {link_types: ["ro\\tce"]}}', ".infiniband.link_types[0]", "found 'ro\\tce'"),
    ],
)
def test_an_error_in_a_source(source: str, path: str, words: str) -> None:
    text = RESOURCE.replace("glob: {paths: [/dev/video*]}", source)
    check_error(text, 5, f".discover[0]{path}", words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("camera", "expected DOMAIN/NAME with one slash"),
        ("a.b/c/d", "expected DOMAIN/NAME with one slash"),
        ("Example.com/x", "lower-case letters"),
        ("/x", "lower-case letters"),
        ("gpu.kubernetes.io/x", "Kubernetes' own"),
        ("requests.a.com/x", "without the prefix 'requests.'"),
        ("a.com/x-", "a letter or digit at both ends"),
        ("a.com/" + "x" * 64, "at most 63 characters"),
        ("a" * 245 + "/x", "at most 244 characters"),
        ("example.com/{{ device.nme }}", "did you mean 'name'?"),
        ("example.com/{{ device.id }}", "found device.id, which a device does not have"),
        ("example.com/{{ resource }}", "unknown name 'resource'"),
        ("example.com/{{ 1 }}", "expected a name, or a template that uses device"),
        ("example.com/{camera}", "expected a name, or a template that uses device"),
        ("Example.com/{{ device.name }}", "expected a domain of lower-case letters"),
    ],
)
def test_an_error_in_a_resource_name(name: str, words: str) -> None:
    check_error(RESOURCE.replace("example.com/camera", f"'{name}'"), 3, ".name", words)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("# nothing\n\n", 1, "found an empty file"),
        ("- 1\n", 1, "found a list, expected a mapping"),
        ("version: 2\nresources: []\n", 1, "version: found 2, expected 1"),
        ("version: 1\n", 1, "expected the key 'resources', which is missing"),
        ("version: 1\nresources: []\n", 2, "found an empty list"),
        ("version: 1\nresource: []\n", 2, "did you mean 'resources'?"),
        ("version: 1\nversion: 1\n", 2, "found the key 'version' a second time"),
        ("a: b: c\n", 1, "not YAML: mapping values are not allowed here"),
        ("a:\n\t- 1\n", 2, "not YAML"),
        ("version: 1\n---\nversion: 1\n", 2, "found a second document"),
        ("a: !!python/object/apply:os.system [x]\n", 1, "found the tag"),
        ("<<: {a: 1}\n", 1, "found a merge key"),
        ("? [a]\n: 1\n", 1, "found a key that is not plain text"),
        ("a: &x [*x]\n", 1, "alias *x has no anchor before it"),
        ("[" * 40 + "]" * 40, 1, "more than 32 levels"),
        (b"version: 1\nname: \xff\n", 2, "found byte 0xff, expected UTF-8"),
        (b"version: 1\nname: a\x01\n", 2, "found character U+0001"),
        (b"#" * (256 * 1024 + 1), None, "expected at most"),
    ],
)
def test_an_error_in_the_file(text: str | bytes, line: int | None, words: str) -> None:
    error = refused(text)
    assert error.line == line
    assert words in str(error)


def test_aliases_that_expand_without_end_are_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    assert "aliases expanded" in str(refused(bomb))


def test_an_error_is_one_line_without_control_characters() -> None:
    assert str(refused(RESOURCE + '    "\\e[31m\\nred": 1\n')).isprintable()


def test_a_family_has_a_resource_only_for_devices() -> None:
    text = RESOURCE.replace("example.com/camera", "'example.com/{{ device.name }}'")
    check_error(f"{text}    advertise_empty: true\n", 6, ".advertise_empty", "only devices name resources")


def test_a_source_is_given_once() -> None:
    text = RESOURCE + "      - glob: {paths: [/dev/video*]}\n"
    check_error(text, 6, ".discover[1]", "found what item 0 is already")


def test_a_resource_is_given_once() -> None:
    assert str(refused(RESOURCE + RESOURCE.split("resources:\n")[1])) == (
        "plugin.yaml:6: resources[1].name: found 'example.com/camera' a second time, the first is on line 3"
    )


def test_a_resource_whose_devices_an_earlier_one_keeps_is_refused() -> None:
    second = "  - name: example.com/lamp\n    discover: [{glob: {paths: [/dev/video*]}}]\n"
    assert str(refused(RESOURCE + second)) == (
        "plugin.yaml:6: resources[1].name: would find what 'example.com/camera' on line 3 finds, which keeps "
        "it: expected another match, or exclusive: false"
    )
    assert load((RESOURCE + second + "    exclusive: false\n").encode(), "x")
    assert load((RESOURCE + second + "    match: '{{ device.name == \"video1\" }}'\n").encode(), "x")


ATTRIBUTES = [
    ("nvidia: {}", "{{ device.attrs.modle }}", "device.attrs.modle, which devices of these sources do not"),
    ("nvidia: {}", "{{ device.attrs['modle'] }}", "did you mean 'model'?"),
    ("nvidia: {}", "{{ device['attrs'].modle }}", "did you mean 'model'?"),
    ("nvidia: {}", "{{ device.attrs.get('modle', '') }}{{ device.attrs | tojson }}", ""),
    ("nvidia: {}}, {usb: {}", "{{ device.attrs.model or device.attrs.serial }}", ""),
    ("files: {directory: /x}", "{{ device.attrs.x }}", "they have no attributes"),
    ("exec: {command: [/x]}", "{{ device.attrs.anything }}", ""),
    ("regex: {pattern: '(?P<bus>a)'}", "{{ device.attrs.bus }}{{ device.attrs.major }}", ""),
    ("regex: {pattern: '(?P<bus>a)'}", "{{ device.attrs.buss }}", "did you mean 'bus'?"),
    ("group: {members: [{path: /a}, {path: /b, name: b}]}", "{{ device.attrs.member1 }}", "'member0'?"),
    ("static: {devices: [{name: a, attrs: {slot: '1'}}]}", "{{ device.attrs.slot }}", ""),
    (
        "sysfs: {paths: [/x], pattern: '/(?P<a>x)', attrs: {b: c}, locate: {d: e}}",
        "{{ device.attrs.a ~ device.attrs.b ~ device.attrs.d }}",
        "",
    ),
    ("sysfs: {paths: [/x], attrs: {b: c}}", "{{ device.attrs.c }}", "expected one of b"),
    ("infiniband: {}", "{{ device.attrs.devices }}", "did you mean 'device'?"),
    ("infiniband: {together: true}", "{{ device.attrs.devices }}", ""),
    ("nvidia: {}", "{{ devices[0].attrs.modle }}", "did you mean 'model'?"),
    ("nvidia: {}", "{{ devices | map(attribute='attrs.modle') | join }}", "did you mean 'model'?"),
    ("nvidia: {}", "{{ devices | selectattr('attrs.migg') | list | length }}", "did you mean 'mig'?"),
]


@pytest.mark.parametrize(("sources", "template", "words"), ATTRIBUTES)
def test_attributes_in_templates_are_those_of_the_sources(sources: str, template: str, words: str) -> None:
    head = f"version: 1\nresources:\n  - name: a.b/c\n    discover: [{{{sources}}}]\n"
    text = head + f"    allocate: {{env: {{'A{{{{ device.id }}}}': \"{template}\"}}}}\n"
    if words:
        assert words in refused(text).problem
    else:
        assert load(text.encode(), "x")
