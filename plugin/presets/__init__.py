"""Presets: a YAML configuration for each common device system."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_DIRECTORY = Path(__file__).parent


class _Presets(Mapping[str, bytes]):
    """The presets' texts by name, read on access."""

    def __getitem__(self, name: str) -> bytes:
        return preset_path(name).read_bytes()

    def __contains__(self, name: object) -> bool:
        return name in preset_names()

    def __iter__(self) -> Iterator[str]:
        return iter(preset_names())

    def __len__(self) -> int:
        return len(preset_names())


PRESETS: Final[Mapping[str, bytes]] = _Presets()


def preset_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.yaml")))


def preset_path(name: str) -> Path:
    """The file of a preset. Raises KeyError for an unknown name."""
    if name not in preset_names():
        raise KeyError(name)
    return _DIRECTORY / f"{name}.yaml"
