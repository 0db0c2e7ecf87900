"""Names of attributes in templates: checked when a file is loaded, against what sources really give."""

import pytest

from plugin.config.load import load
from runtime.config_file import ConfigError

RESOURCE = """\
version: 1
resources:
  - name: example.com/x
    discover: [{discover}]
    {key}
"""


def refusal(discover: str, key: str) -> str:
    try:
        load(RESOURCE.format(discover=discover, key=key).encode(), "x")
    except ConfigError as error:
        return error.problem
    return ""


@pytest.mark.parametrize(
    ("discover", "text", "words"),
    [
        (
            "{nvidia: {}}",
            "{{ device.attrs.modle }}",
            "device.attrs.modle, which devices of these sources do not",
        ),
        ("{nvidia: {}}", "{{ device.attrs.modle }}", "did you mean 'model'?"),
        ("{nvidia: {}}", "{{ device.attrs['modle'] }}", "did you mean 'model'?"),
        ("{nvidia: {}}", "{{ device['attrs'].modle }}", "did you mean 'model'?"),
        ("{nvidia: {}}", "{{ device.attrs.model }}", ""),
        ("{nvidia: {}}", "{{ device.attrs.get('modle', '') }}", ""),
        ("{nvidia: {}}", "{{ device.attrs | tojson }}", ""),
        ("{nvidia: {}}, {usb: {}}", "{{ device.attrs.serial or device.attrs.uuid }}", ""),
        ("{files: {directory: /x}}", "{{ device.attrs.x }}", "they have no attributes"),
        ("{exec: {command: [/x]}}", "{{ device.attrs.anything }}", ""),
        ("{regex: {pattern: '(?P<bus>a)'}}", "{{ device.attrs.bus }}{{ device.attrs.major }}", ""),
        ("{regex: {pattern: '(?P<bus>a)'}}", "{{ device.attrs.buss }}", "did you mean 'bus'?"),
        ("{group: {members: [{path: /a}, {path: /b, name: b}]}}", "{{ device.attrs.member0 }}", ""),
        ("{group: {members: [{path: /a}, {path: /b, name: b}]}}", "{{ device.attrs.member1 }}", "'member0'?"),
        ("{static: {devices: [{name: a, attrs: {slot: '1'}}]}}", "{{ device.attrs.slot }}", ""),
        ("{static: {devices: [{name: a}]}}", "{{ device.attrs.slot }}", "they have no attributes"),
        (
            "{sysfs: {paths: [/x], pattern: '/(?P<a>x)', attrs: {b: c}, locate: {d: e}}}",
            "{{ device.attrs.a ~ device.attrs.b ~ device.attrs.d }}",
            "",
        ),
        ("{sysfs: {paths: [/x], attrs: {b: c}}}", "{{ device.attrs.c }}", "expected one of b"),
        ("{infiniband: {}}", "{{ device.attrs.devices }}", "did you mean 'device'?"),
        ("{infiniband: {together: true}}", "{{ device.attrs.devices }}", ""),
    ],
)
def test_an_attribute_that_no_source_gives_is_refused_when_the_file_is_loaded(
    discover: str, text: str, words: str
) -> None:
    problem = refusal(discover, f'id: "{text}"')
    assert words in problem
    assert bool(words) == bool(problem)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ devices[0].attrs.modle }}", "did you mean 'model'?"),
        ("{{ (devices | first).attrs.modle }}", "did you mean 'model'?"),
        ("{% for d in devices %}{{ d.attrs.modle }}{% endfor %}", "did you mean 'model'?"),
        ("{{ devices | map(attribute='attrs.modle') | join }}", "did you mean 'model'?"),
        ("{{ devices | map(attribute='attrs.model') | join }}", ""),
        ("{{ devices | selectattr('attrs.migg') | list | length }}", "did you mean 'mig'?"),
    ],
)
def test_attributes_of_several_devices_are_checked_as_well(text: str, words: str) -> None:
    problem = refusal("{nvidia: {}}", f'allocate: {{env: {{A: "{text}"}}}}')
    assert words in problem
    assert bool(words) == bool(problem)
