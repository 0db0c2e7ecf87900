"""The examples in the comments of presets."""

import re
from textwrap import indent

import pytest

from plugin.config.load import load
from plugin.presets import PRESETS

_SHOWN = re.compile(r"(?:^#   .*\n)+", re.MULTILINE)


def shown(name: str) -> list[str]:
    """The pieces of YAML that a preset's comment shows."""
    return [
        "".join(line.removeprefix("#   ") for line in block.splitlines(keepends=True))
        for block in _SHOWN.findall(PRESETS[name].read_text())
    ]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in sorted(PRESETS) for text in shown(name)])
def test_examples_in_comments_adjust_the_preset(name: str, text: str) -> None:
    beside = text if text.startswith("- ") else f"- preset: {name}\n" + indent(text, "  ")
    written = "".join(f"  {line}\n" for line in beside.splitlines())
    adjusted = load(f"version: 1\nresources:\n{written}".encode(), name)
    assert adjusted
    assert adjusted != load(PRESETS[name].read_bytes(), name)


def test_comments_show_something() -> None:
    assert sum(len(shown(name)) for name in PRESETS) > 8


def test_nvidia_with_cdi_names_gives_nothing_else() -> None:
    (text,) = [text for text in shown("nvidia") if "cdi" in text]
    (plan,) = load(f"version: 1\nresources:\n  - preset: nvidia\n    {text}".encode(), "x")
    assert (plan.allocate.env, plan.allocate.devices) == ((), ())
    assert [template.text for template in plan.allocate.cdi] == ["nvidia.com/gpu={{ device.id }}"]
