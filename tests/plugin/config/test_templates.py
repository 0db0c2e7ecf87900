from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, nodes

from plugin.config.compile import compile_template
from plugin.config.jinja import MAX_STEPS, jinja_template
from plugin.config.templates import (
    DEVICE_FIELDS,
    FOUND_FIELDS,
    MAX_OUTPUT,
    Template,
    TemplateError,
    plain_template,
)
from plugin.devices.device import Device

NAMES = frozenset({"device", "devices", "ids"})
ONE = Device("gpu0", "zero", "/dev/gpu0", {"model": "C9", "serial": "x"}, (1,))
TWO = Device("gpu1", "one", "/dev/gpu1", {"model": "D1"}, ())


def compiled(text: str) -> Template:
    return compile_template(text, NAMES, DEVICE_FIELDS)


def rendered(text: str, **variables: Any) -> str:
    return compiled(text).render(
        {"device": ONE, "devices": [ONE, TWO], "ids": ["gpu0::1", "gpu1::0"], **variables}
    )


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("a {# note #}b", "a b"),
        ("{{ device.id }}", "gpu0"),
        ("{{ device.attrs.model }}-{{ device.attrs['serial'] }}", "C9-x"),
        ("{{ device.attrs.get('none', 'else') }}", "else"),
        ("{{ device.attrs.get('model', '').startswith('C9') }}", "True"),
        ("{{ devices | map(attribute='id') | join(',') }}", "gpu0,gpu1"),
        ("{{ ids | sort | join(' ') }}", "gpu0::1 gpu1::0"),
        ("{% for d in devices %}{{ loop.index }}={{ d.path }};{% endfor %}", "1=/dev/gpu0;2=/dev/gpu1;"),
        ("{{ (devices | first).name }}{{ devices[1].name }}", "zeroone"),
        ("{% if device.numa_nodes %}{{ device.numa_nodes[0] }}{% else %}none{% endif %}", "1"),
        ("{{ device.path.removeprefix('/dev/') | upper }}", "GPU0"),
        ("{{ device.attrs | tojson }}", '{"model":"C9","serial":"x"}'),
        ("{{ 2 * 3 + 10 % 4 }}", "8"),
        ("{% for n in device.numa_nodes %}{{ n + loop.index0 }}{% endfor %}", "1"),
        ("{% for k, v in device.attrs.items() %}{{ k }}={{ v.upper() }} {% endfor %}", "model=C9 serial=X "),
        ("{{ ids[0].partition('::')[0] }}{{ (ids | sort | last).count('::') }}", "gpu01"),
        ("{% for d in devices %}{% for n in d.nodes %}{{ n.upper() }}{% endfor %}{% endfor %}", ""),
        ("{{ devices | map(attribute='numa_nodes') | first | join }}{{ device.attrs[ids[0]] | d }}", "1"),
    ],
)
def test_templates_render_devices(text: str, result: str) -> None:
    assert rendered(text) == result


_SPACE = st.sampled_from(["", " ", "  ", "\n", "\t", "\r\n"])
_BETWEEN = st.text(st.sampled_from([*"ab ,;:|/()-_%#é", "\x85", "\u2028"]), max_size=3)
_QUOTED = st.builds("{0}{1}{0}".format, st.sampled_from(["'", '"']), _BETWEEN)
_EXPRESSION = st.one_of(
    st.sampled_from(["device.id", "device.name", "device.path", "resource", "node", "id", "n"]),
    st.sampled_from(["model", "serial", "nope", "in", "_x", "e1", "X9"]).map("device.attrs.{}".format),
    st.builds("ids{}|{}join({}{}{})".format, _SPACE, _SPACE, _SPACE, _QUOTED, _SPACE),
)
_INSERTION = st.builds("{{{{{}{}{}}}}}".format, _SPACE, _EXPRESSION, _SPACE)
_DATA = st.text(st.sampled_from([*"a }%#-'\"\\é.:,", "\n", "\r", "\x85", "\x00"]), min_size=1, max_size=5)
_PLAIN = st.lists(_INSERTION | _DATA, max_size=5).map("".join)
_ANY_NAMES = frozenset({"device", "devices", "ids", "resource", "node", "id", "n"})
_ANY_FIELDS = st.sampled_from([DEVICE_FIELDS, FOUND_FIELDS, frozenset[str]()])
_ANY_ATTRIBUTES = st.sampled_from([None, frozenset[str](), frozenset({"model", "nope", "in"})])
_ANY_VALUES: Mapping[str, object] = {
    "device": ONE,
    "devices": [ONE],
    "ids": ["a", "b"],
    "resource": "x.y/z",
    "node": "/dev/n",
    "id": "gpu0",
    "n": 7,
}


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error."""
    try:
        return call()
    except TemplateError as error:
        return f"error: {error}"


@given(_PLAIN, st.frozensets(st.sampled_from(sorted(_ANY_NAMES))), _ANY_FIELDS, _ANY_ATTRIBUTES, st.data())
def test_what_is_plain_is_to_jinja_the_same(
    text: str,
    names: frozenset[str],
    fields: frozenset[str],
    attributes: frozenset[str] | None,
    data: st.DataObject,
) -> None:
    assert plain_template(text, _ANY_NAMES, DEVICE_FIELDS) is not None
    by_jinja = outcome(lambda: jinja_template(text, names, fields, attributes))
    assert outcome(lambda: compile_template(text, names, fields, attributes)) == by_jinja
    plain = plain_template(text, names, fields, attributes)
    # Only Jinja2 refuses templates.
    assert (plain is None) == isinstance(by_jinja, str)
    if plain is not None:
        assert (plain.text, plain.uses) == (by_jinja.text, by_jinja.uses)
        present = data.draw(st.sets(st.sampled_from(sorted(_ANY_VALUES))))
        for values in (_ANY_VALUES, {name: _ANY_VALUES[name] for name in present}):
            assert outcome(lambda: plain.render(values)) == outcome(lambda: by_jinja.render(values))  # noqa: B023


_LEXEMES = (
    r"""{ } {{ }} {% %} {# #} {{- -}} {{+ - \ ' " x device . id attrs items ids | join ( ) ',' '}}' raw"""
)
_MIXED = st.sampled_from(
    [
        *(_LEXEMES.split()),
        *("{{ device.id }}", "{{ ids | join(',') }}", "{{ n }}", "{{ ids|join }}", "{{ ids | join(d=',') }}"),
        *("{{ ids | join('\\n') }}", "{{ ids | first }}", "{{ device }}", "{{ device.attrs.get }}", "é", "²"),
        *("{{ device.attrs['x'] }}", "{{ device.attrs.é }}", "{{ 'a' }}", "{{ n + 1 }}", " ", "\n"),
    ]
)


@settings(max_examples=300)
@given(st.lists(_MIXED, max_size=6).map("".join))
def test_what_is_not_plain_is_left_to_jinja(text: str) -> None:
    plain = plain_template(text, _ANY_NAMES, DEVICE_FIELDS)
    if plain is not None:
        tree = Environment(autoescape=False).parse(text)
        outputs = [part for output in tree.body for part in cast("nodes.Output", output).nodes]
        assert all(is_plain(part) for part in outputs)
        by_jinja = jinja_template(text, _ANY_NAMES, DEVICE_FIELDS)
        assert plain == by_jinja
        assert outcome(lambda: plain.render(_ANY_VALUES)) == outcome(lambda: by_jinja.render(_ANY_VALUES))


def is_plain(node: nodes.Node) -> bool:
    """Whether Jinja2's node is a text, a variable, a field, an attribute, or joined ids."""
    match node:
        case nodes.TemplateData() | nodes.Name(name="resource" | "node" | "id" | "n"):
            return True
        case nodes.Getattr(node=nodes.Name(name="device"), attr="id" | "name" | "path"):
            return True
        case nodes.Getattr(node=nodes.Getattr(node=nodes.Name(name="device"), attr="attrs"), attr=name):
            return not hasattr(dict, name)
        case nodes.Filter(
            node=nodes.Name(name="ids"), name="join", args=[nodes.Const(value=str())], kwargs=[]
        ):
            return True
        case _:
            return False


@pytest.mark.parametrize(
    "text",
    [
        *(
            "{{- device.id }}",
            "{{ device.id -}}",
            "{{{ device.id }}}",
            "{{ device.id",
            "{% if ids %}{% endif %}",
        ),
        *("{# {{ device.id }} #}", "{% raw %}{{ device.id }}{% endraw %}", "{{ 'x' }}", "{{ devices }}"),
        *("{{ ids | join }}", "{{ ids | join('\\n') }}", "{{ ids | join('}}') }}", "{{ ids | first }}"),
        *("{{ ids | join(',') | upper }}", "{{ device.nodes }}", "{{ device.attrs.items }}"),
        *("{{ device.attrs.model or 'x' }}", "{{ device.attrs.a.b }}", "{{ device.attrs.é }}"),
    ],
)
def test_a_template_that_does_more_than_insert_texts_is_not_plain(text: str) -> None:
    assert plain_template(text, _ANY_NAMES, DEVICE_FIELDS) is None


def test_a_plain_template_has_the_longest_output_of_all() -> None:
    with pytest.raises(TemplateError, match="more than"):
        rendered("{{ ids | join(',') }}", ids=["x" * MAX_OUTPUT, "y"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ dvice.id }}", "did you mean 'device'?"),
        ("{{ device.idd }}", "did you mean 'id'?"),
        ("{{ device['idd'] }}", "did you mean 'id'?"),
        ("{{ devices[0].pth }}", "did you mean 'path'?"),
        ("{{ (devices | last).pth }}", "did you mean 'path'?"),
        ("{{ devices[1:] | map(attribute='pth') | join }}", "did you mean 'path'?"),
        ("{{ devices | selectattr('nam') | list | length }}", "did you mean 'name'?"),
        ("{% for d in devices | sort(attribute='id') %}{{ d.pth }}{% endfor %}", "did you mean 'path'?"),
        ("{% for d in ids %}" * 30 + "{% endfor %}" * 30, "nested too deeply"),
        ("{% for d in devices recursive %}{% endfor %}", "recursive"),
        ("{% set x = 1 %}", "expected only expressions, if and for"),
        ("{% include 'x' %}", "expected only expressions, if and for"),
        ("{{ 2 ** 9 }}", "expected only expressions, if and for"),
        ("{{ range(9) }}", "a call of something that is not a method"),
        ("{{ self }}", "unknown name 'self'"),
        ("{{ ids.append('x') }}", "unknown method 'append'"),
        ("{{ ids | random }}", "unknown filter 'random'"),
        ("{{ device.__class__ }}", "which a device does not have"),
        ("{{ device.name.path }}", "but device.name is text, which has only the methods count, endswith,"),
        ("{{ device.name.upper }}", "but device.name is text"),
        ("{{ ids[0]['x'] }}", "but ids[0] is text"),
        ("{{ device.name.items() }}", "found device.name.items(), but device.name is text"),
        ("{{ device.attrs.lower() }}", "is a mapping, which has only the methods get, items, keys, values"),
        ("{{ devices.path }}", "but devices is a list of devices: expected an index, a filter such as join"),
        ("{{ device.nodes.path }}", "but device.nodes is a list of texts"),
        ("{% for n in device.nodes %}{{ n.path }}{% endfor %}", "found n.path, but n is text"),
        ("{% for d in ids %}{{ loop.idx }}{% endfor %}", "found loop.idx, expected one of first, index"),
        ("{{ unclosed", "not a template"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deeply"),
    ],
)
def test_a_template_with_an_error_is_refused(text: str, words: str) -> None:
    with pytest.raises(TemplateError, match=r".") as caught:
        compiled(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ device.attrs.nope }}", "has no attribute 'nope'"),
        ("{{ device.attrs.get('nope') }}", "gives nothing"),
        ("{{ devices }}", "gives a list"),
        ("{{ device.attrs }}", "gives a mapping"),
        ("{{ device }}", "gives an object"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ 'a' * 1000000000 }}", "numbers only"),
        ("{{ '%999999999d' % 1 }}", "numbers only"),
        ("{{ (9999999999 * 9999999999) * 9999999999 * 2 }}", "too large"),
        ("{{ (device.attrs.model | lower).__class__.__mro__ }}", "unsafe"),
        ("{{ long | replace('x', 'xxxxxxxx') }}", "more than"),
        ("{{ long.replace('x', 'xxxxxxxx') }}", "more than"),
        ("{{ long + long }}", "more than"),
    ],
)
def test_a_template_that_fails_has_one_clear_error(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_template(text, NAMES | {"long"}, DEVICE_FIELDS).render(
            {"device": ONE, "devices": [ONE], "ids": ["gpu0"], "long": "x" * MAX_OUTPUT}
        )
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in big %}{% for b in big %}{% endfor %}{% endfor %}",
        "{% for a in big %}" * 5 + "{% endfor %}" * 5,
        "{% for a in big | map('upper') %}{% for b in big | map('upper') %}{% endfor %}{% endfor %}",
        "{% for a in big %}{{ '' if a in big }}{% endfor %}",
        "{% for a in big %}{{ '' if big == other }}{% endfor %}",
        "{% for a in big %}{{ '' if big[1:] }}{% endfor %}",
        "{% for a in big %}{{ '' if big + other }}{% endfor %}",
        "{% for a in big %}{{ '' if big | sort }}{% endfor %}",
        "{% for a in big %}{{ long | length }}{% endfor %}",
        "{% for a in big %}{{ long.count('y') }}{% endfor %}",
        "{% for a in big %}{{ '' if 'y' in long }}{% endfor %}",
        "{% for a in big %}{{ '' if a ~ long }}{% endfor %}",
        "{% for a in big %}" + "{% if a == 'y' %}{% endif %}" * 200 + "{% endfor %}",
        "{{ big | select('in', big) | list | length }}",
        "{{ big | map('replace', 'x', long) | list | length }}",
        "{{ [" + "big," * 500 + "] | string | length }}",
        "{{ (" + "long ~ " * 500 + "'') | length }}",
        "{{ [" + "big," * 500 + "] | tojson | length }}",
        "{% for d in devices %}{% for e in big | list %}{{ e }}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_ends_within_its_budget_of_steps(text: str) -> None:
    names = frozenset({"big", "other", "long", "devices"})
    big = ["x"] * 20_000
    with pytest.raises(TemplateError, match=f"takes more than {MAX_STEPS} steps|renders to more than"):
        compile_template(text, names, DEVICE_FIELDS).render(
            {"big": big, "other": list(big), "long": "x" * MAX_OUTPUT, "devices": [ONE] * 200}
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ long | list | join(long) }}", "renders to more than"),
        ("{{ [long, long] | tojson }}", "renders to more than"),
        ("{{ 5 | round(-1000000000) }}", "rounds to -1000000000 digits"),
        ("{{ 5 | round(1000000000, 'ceil') }}", "rounds to 1000000000 digits"),
        ("{{ long.strip(long) }}", "strips more than"),
        ("{{ long | trim(long) }}", "strips more than"),
    ],
)
def test_a_filter_cannot_multiply_its_time_or_memory(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_template(text, frozenset({"long"}), DEVICE_FIELDS).render({"long": "x" * MAX_OUTPUT})
    assert words in str(caught.value)


def test_the_budget_counts_iterations_and_not_loops() -> None:
    nested = "{% for a in ids %}{% for b in ids %}{% for c in ids %}{% if a == b %}{{ c }}{% endif %}"
    assert rendered(nested + "{% endfor %}" * 3, ids=["x"] * 30) == "x" * 30**3
    pairs = "{% for d in devices %}{% for e in devices %}{{ 1 if d.id == e.id }}{% endfor %}{% endfor %}"
    assert rendered(pairs, devices=[Device(str(n), str(n)) for n in range(256)]) == "1" * 256
    assert rendered("{% for a in ids | map('upper') %}{{ loop.length }}{% endfor %}", ids=["x", "y"]) == "22"


@pytest.mark.parametrize(
    ("text", "holds"),
    [("{{ 1 == 1 }}", True), ("true", True), ("{{ device.id == 'x' }}", False), ("", False)],
)
def test_a_condition_holds_or_does_not(text: str, *, holds: bool) -> None:
    assert compiled(text).holds({"device": ONE}) is holds


def test_a_condition_that_is_neither_is_an_error() -> None:
    with pytest.raises(TemplateError, match="expected true or false"):
        compiled("{{ device.id }}").holds({"device": ONE})


def test_templates_of_one_text_are_equal() -> None:
    assert compiled("{{ ids | join }}") == compiled("{{ ids | join }}")
    assert compiled("{{ ids | join }}").uses == {"ids"}
    assert compiled("x").uses == frozenset()


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_any_text_is_a_template_or_a_clear_error(text: str) -> None:
    with suppress(TemplateError):
        compiled(text).render({"device": ONE, "devices": [ONE], "ids": ["x"]})
