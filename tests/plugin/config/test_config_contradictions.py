"""What a configuration may say key by key, and not all at once; and texts that cannot mean anything."""

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
NODE = "{{ node }}"
PATH = "{{ device.path }}"


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text.encode(), "plugin.yaml")
    return caught.value


def told(text: str, line: int, path: str, words: str) -> None:
    error = refused(text)
    assert str(error).startswith(f"plugin.yaml:{line}: resources[0].{path}: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("probe", "path", "words"),
    [
        ("{exists: /x, carrier: eth0}", "", "found exists and carrier, expected exactly one of exists, file"),
        ("{interval: 5s}", "", "found no probe, expected exactly one of"),
        ("{exists: '{{ device.path', interval: 5s}", ".exists", "not a template"),
        ("{exists: 'dev/{{ device.name }}'}", ".exists", "expected an absolute path"),
        ("{exists: /x, interval: 5}", ".interval", "found 5, expected text: put it in quotes"),
        ("{exists: /x, interval: soon}", ".interval", "expected a duration such as 250ms"),
        ("{exists: /x, interval: 1ms}", ".interval", "expected from 100ms to 1d"),
        ("{exists: /x, interval: 2d}", ".interval", "expected from 100ms to 1d"),
        ("{exists: /x, interval: 2s, timeout: 3s}", ".timeout", "expected at most the interval, 2s"),
        ("{exists: /x, timeout: 31s}", ".timeout", "expected at most 30s, or an interval that is as long"),
        ("{exists: /x, timeout: 0}", ".timeout", "found 0, expected text"),
        ("{exists: /x, timeout: '0'}", ".timeout", "expected from 10ms to 5m"),
        ("{exists: /x, failures: 0}", ".failures", "expected a whole number >= 1"),
        ("{exists: /x, successes: 101}", ".successes", "expected a whole number <= 100"),
        ("{exists: /x, initial: healthy}", ".initial", "expected true or false"),
        ("{file: /x}", ".file", "found '/x', expected a mapping"),
        ("{file: {equals: x}}", ".file", "expected the key 'path', which is missing"),
        ("{file: {path: /x}}", ".file", "found no expectation, expected one of equals, one_of, matches"),
        ("{file: {path: /x, equal: y}}", ".file.equal", "did you mean 'equals'?"),
        ("{file: {path: x, equals: y}}", ".file.path", "expected an absolute path"),
        ("{file: {path: /x, equals: a, one_of: [a]}}", ".file.one_of", "found equals and one_of"),
        ("{file: {path: /x, one_of: []}}", ".file.one_of", "which no content satisfies"),
        ("{file: {path: /x, equals: ' a'}}", ".file.equals", "without white space at its ends"),
        ("{file: {path: /x, matches: '('}}", ".file.matches", "expected a regular expression"),
        ("{file: {path: /x, not_matches: '[a'}}", ".file.not_matches", "expected a regular expression"),
        ("{file: {path: /x, matches: '(a+)+b'}}", ".file.matches", "repeats in repeats"),
        ("{file: {path: /x, at_least: 5, at_most: 4}}", ".file.at_most", "found 4, expected at least 5"),
        ("{file: {path: /x, at_least: .nan}}", ".file.at_least", "expected a finite number"),
        ("{file: {path: /x, at_least: '5'}}", ".file.at_least", "found '5', expected a number"),
        ("{carrier: eth0/1}", ".carrier", "expected a network interface's name"),
        ("{carrier: ''}", ".carrier", "expected a network interface's name"),
        ("{exec: {command: []}}", ".exec.command", "found an empty list"),
        ("{exec: {command: [true]}}", ".exec.command[0]", "put it in quotes"),
        ("{exec: {command: [nvidia-smi]}}", ".exec.command[0]", "expected an absolute path"),
        ("{exec: {command: /bin/true}}", ".exec.command", "expected a list"),
        ("{http: {url: localhost:80}}", ".http.url", "expected an address such as http://"),
        ("{http: {url: 'ftp://{{ device.name }}'}}", ".http.url", "begins with http:// or https://"),
        ("{http: {url: 'http://x', status: []}}", ".http.status", "which no answer satisfies"),
        ("{http: {url: 'http://x', status: [42]}}", ".http.status[0]", "expected a status from 100 to 599"),
        ("{xid: {}}", ".xid", "expected nvidia in discover"),
    ],
)
def test_a_probe_that_cannot_be_is_told(probe: str, path: str, words: str) -> None:
    told(RESOURCE + f"    health: [{probe}]\n", 6, f"health[0]{path}", words)


@pytest.mark.parametrize(
    ("addition", "path", "words"),
    [
        ("interval: 5s", "interval", "found interval beside xid, which is reported by events"),
        ("timeout: 5s", "timeout", "found timeout beside xid"),
        ("failures: 2", "failures", "found failures beside xid"),
        ("initial: true", "initial", "found initial beside xid"),
        ("xid: {quiet: 0s}", "xid.quiet", "expected from 1s to 1w"),
        ("xid: {ignore: [-1]}", "xid.ignore[0]", "expected an XID"),
        ("xid: {ignore: 13}", "xid.ignore", "expected a list"),
    ],
)
def test_events_are_never_asked(addition: str, path: str, words: str) -> None:
    probe = addition if addition.startswith("xid") else f"xid: {{}}, {addition}"
    text = RESOURCE.replace("glob: {paths: [/dev/video*]}", "nvidia: {}")
    told(text + f"    health: [{{{probe}}}]\n", 6, f"health[0].{path}", words)


@pytest.mark.parametrize(
    ("addition", "path", "words"),
    [
        (
            "health: [{exists: /x}, {exists: /x, interval: 1s}]",
            "health[1]",
            "found what item 0 checks already",
        ),
        ("share: {id: '{{ id }}-{{ n }}'}", "share.id", "found id without replicas"),
        ("share: {first: 1}", "share.first", "found first without replicas"),
        ("share: {replicas: 2, first: 2}", "share.first", "expected one of 0, 1"),
        ("share: {replicas: 2, id: '{{ id }}'}", "share.id", "does not use n: all replicas"),
        ("share: {replicas: 2, id: '{{ device.id }}-{{ n }}'}", "share.id", "unknown name 'device'"),
        ("prefer: numa\n    numa: off", "prefer", "found 'numa' with numa off"),
        ("match: sometimes", "match", "expected a condition such as {{ device.name == 'video0' }}"),
        ("id: ''", "id", "it is empty"),
        ("id: '{{ node }}'", "id", "unknown name 'node'"),
        ("match: '{{ resource }}'", "match", "unknown name 'resource'"),
        ("allocate: {env: {A: '{{ node }}'}}", "allocate.env.A", "unknown name 'node'"),
        ("allocate: {env: {'{{ resource }}': x}}", "allocate.env.{{ resource }}", "a variable's name"),
        (f"allocate: {{mounts: [{{host: '{NODE}'}}]}}", "allocate.mounts[0].host", "unknown name 'node'"),
        (
            "allocate: {devices: [{host: 'dev/{{ device.name }}'}]}",
            "allocate.devices[0].host",
            "absolute path",
        ),
        (
            f"allocate: {{devices: [{{host: '{PATH}', container: 'x{NODE}'}}]}}",
            "allocate.devices[0].container",
            "absolute path",
        ),
        ("allocate: {devices: [{host: /x, container: /}]}", "allocate.devices[0].container", "below '/'"),
        ("allocate: {mounts: [{host: /}]}", "allocate.mounts[0].host", "expected a path below '/'"),
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
            "allocate: {devices: [{host: /a, container: /x}, {host: /b, container: /x}]}",
            "allocate.devices[1]",
            "the first is devices[0]",
        ),
        (
            "allocate: {devices: [{host: /x}], mounts: [{host: /x}]}",
            "allocate.mounts[0]",
            "puts something at /x again, the first is devices[0]",
        ),
        (
            "allocate: {mounts: [{host: /x}], files: [{host: /y, container: /x, content: a}]}",
            "allocate.files[0]",
            "the first is mounts[0]",
        ),
        ("allocate: {files: [{host: /y, container: /x}]}", "allocate.files[0]", "the key 'content'"),
        (
            "allocate: {files: [{host: /y, container: /x, content: a, mode: 0444}]}",
            "allocate.files[0].mode",
            "put it in quotes",
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
        ("cdi: {kind: a.b/c, env: {A: b}, directory: cdi}", "cdi.directory", "expected an absolute path"),
        ("cdi: {kind: a.b/c}", "cdi", "gives containers nothing, expected env, devices or mounts"),
        ("cdi: {kind: a.b/c, env: {A: '{{ ids }}'}}", "cdi.env.A", "unknown name 'ids'"),
        ("cdi: {kind: a.b/c, env: {A B: b}}", "cdi.env.A B", "expected a variable's name"),
        ("cdi: {env: {A: b}}", "cdi", "expected the key 'kind', which is missing"),
        ("pre_start: {exec: []}", "pre_start.exec", "found an empty list"),
        ("pre_start: {exec: [reset]}", "pre_start.exec[0]", "expected an absolute path"),
        ("pre_start: {exec: [/bin/true], timeout: 30s}", "pre_start.timeout", "expected from 10ms to 28s"),
        ("pre_start: {exec: [/bin/true, '{{ node }}']}", "pre_start.exec[1]", "unknown name 'node'"),
        ("pre_start: {timeout: 5s}", "pre_start", "expected the key 'exec', which is missing"),
        ("exclusive: maybe", "exclusive", "expected true or false"),
    ],
)
def test_parts_that_contradict_each_other_are_told(addition: str, path: str, words: str) -> None:
    told(RESOURCE + f"    {addition}\n", 6, path, words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("'example.com/{{ device.nme }}'", "did you mean 'name'?"),
        ("'example.com/{{ device.id }}'", "found device.id, which a device does not have"),
        ("'example.com/{{ resource }}'", "unknown name 'resource'"),
        ("'example.com/{{ 1 }}'", "expected a name, or a template that uses device"),
        ("'example.com/{camera}'", "expected a name, or a template that uses device"),
        ("'Example.com/{{ device.name }}'", "expected a domain of lower-case letters"),
        ("'kubernetes.io/{{ device.name }}'", "kubernetes.io is Kubernetes' own"),
    ],
)
def test_a_name_that_devices_make_is_checked_as_far_as_it_is_known(name: str, words: str) -> None:
    error = refused(RESOURCE.replace("example.com/camera", name))
    assert str(error).startswith("plugin.yaml:3: resources[0].name: ")
    assert words in str(error)


def test_only_devices_tell_the_names_of_a_family() -> None:
    text = RESOURCE.replace("example.com/camera", "'example.com/{{ device.name }}'")
    told(text + "    advertise_empty: true\n", 6, "advertise_empty", "only devices name resources")


def test_a_source_given_twice_is_told() -> None:
    text = RESOURCE + "      - glob: {paths: [/dev/video*]}\n"
    told(text, 6, "discover[1]", "found what item 0 is already")


def test_a_resource_whose_devices_an_earlier_one_keeps_is_told() -> None:
    second = "  - name: example.com/lamp\n    discover: [{glob: {paths: [/dev/video*]}}]\n"
    assert str(refused(RESOURCE + second)) == (
        "plugin.yaml:6: resources[1].name: would find what 'example.com/camera' on line 3 finds, which keeps "
        "it: expected another match, or exclusive: false"
    )
    assert load((RESOURCE + second + "    exclusive: false\n").encode(), "x")
    assert load((RESOURCE + second + "    match: '{{ device.name == \"video1\" }}'\n").encode(), "x")
