import pytest

from plugin.config.load import load
from runtime.config_file import ConfigError


@pytest.mark.parametrize(
    ("source", "place", "said"),
    [
        (
            "regex: {pattern: '(a+)+'}",
            "regex.pattern",
            "found '(a+)+', expected a regular expression without repeats",
        ),
        ("regex: {pattern: 'a', directory: dev}", "regex.directory", "expected an absolute path"),
        ("regex: {pattern: 'a', depth: 9}", "regex.depth", "found 9, expected"),
        ("regex: {patern: 'a'}", "regex.patern", "did you mean 'pattern'"),
        ("regex: {directory: /dev}", "regex", "expected the key 'pattern', which is missing"),
        ("group: {members: []}", "group.members", "found an empty list"),
        (
            "group: {members: [{path: dev}]}",
            "group.members[0].path",
            "found 'dev', expected an absolute path",
        ),
        (
            "group: {members: [{path: /a, name: 'A b'}]}",
            "group.members[0].name",
            "found 'A b', expected a name such as",
        ),
        ("group: {members: [{path: /a, limit: 0}]}", "group.members[0].limit", "found 0, expected"),
        ("usb: {vendors: [0x0403]}", "usb.vendors[0]", "found 1027, expected text: put it in quotes"),
        (
            "usb: {products: ['zz']}",
            "usb.products[0]",
            "found 'zz', expected at most four hexadecimal digits",
        ),
        ("usb: {ports: ['usb1']}", "usb.ports[0]", "found 'usb1', expected a USB port or a pattern"),
        ("usb: {classes: ['123']}", "usb.classes[0]", "found '123', expected a USB class"),
        ("usb: {vendor: ['0403']}", "usb.vendor", "did you mean 'vendors'"),
        ("sysfs: {paths: [sys/x]}", "sysfs.paths[0]", "found 'sys/x', expected an absolute path"),
        (
            "sysfs: {paths: [/sys/x], keep: [{file: /state}]}",
            "sysfs.keep[0].file",
            "expected a path below the device's",
        ),
        (
            "sysfs: {paths: [/sys/x], keep: [{file: a, matches: '['}]}",
            "sysfs.keep[0].matches",
            "unterminated character set",
        ),
        (
            "sysfs: {paths: [/sys/x], attrs: {Model: m}}",
            "sysfs.attrs.Model",
            "found 'Model', expected a name such as",
        ),
        (
            "sysfs: {paths: [/sys/x], attrs: {m: [a, /b]}}",
            "sysfs.attrs.m[1]",
            "found '/b', expected a path below",
        ),
        ("exec: {command: [ls]}", "exec.command[0]", "found 'ls', expected an absolute path"),
        (
            "exec: {command: [/bin/ls], timeout: 20s}",
            "exec.timeout",
            "found '20s', expected from 100ms to 15s",
        ),
        ("exec: {command: [/bin/ls], interval: often}", "exec.interval", "expected a duration such as"),
        ("exec: {command: []}", "exec.command", "found an empty list"),
        ("nvidia: {kind: gpu}", "nvidia.kind", "found 'gpu', expected one of"),
        ("nvidia: {library: libnvidia-ml.so.1}", "nvidia.library", "expected an absolute path"),
        ("nvidia: {mig: true}", "nvidia.mig", "found an unknown key 'mig'"),
    ],
)
def test_a_bad_source_is_refused_with_its_place_and_advice(source: str, place: str, said: str) -> None:
    text = f"version: 1\nresources:\n  - name: example.com/x\n    discover:\n      - {source}\n"
    with pytest.raises(ConfigError) as caught:
        load(text.encode(), "plugin.yaml")
    message = str(caught.value)
    assert message.startswith(f"plugin.yaml:5: resources[0].discover[0].{place}: ")
    assert said in message
