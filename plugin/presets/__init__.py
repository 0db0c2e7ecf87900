"""Ready-made configurations, one YAML file for each device system, in the language that users write."""

from pathlib import Path

_DIRECTORY = Path(__file__).parent


def preset_names() -> tuple[str, ...]:
    """The presets that there are."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.yaml")))


def preset_path(name: str) -> Path:
    """The file of one of `preset_names()`. Raises KeyError for any other name."""
    if name not in preset_names():
        raise KeyError(name)
    return _DIRECTORY / f"{name}.yaml"
