"""Sources: exactly one in each item of `discover`, its own contradictions told with their place."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from msgspec import UNSET

from plugin.core import model
from plugin.core.errors import Path
from plugin.core.place import Place


@runtime_checkable
class SelfChecking(Protocol):
    """A source's struct that knows what the decoder does not: patterns, numbers written as text, paths."""

    def problems(self) -> Iterator[tuple[Path, str]]:
        """(path below the source's key, "found …, expected …") of everything that is wrong in it."""
        ...


def compile_sources(written: list[model.Source], place: Place) -> tuple[model.AnySource, ...]:
    """The sources of `discover`, at `place`. Raises ConfigError."""
    sources: list[model.AnySource] = []
    for index, item in enumerate(written):
        source = _source(item, place.at(index))
        if source in sources:
            raise place.at(index).error(f"found what item {sources.index(source)} is already")
        sources.append(source)
    return tuple(sources)


def _source(item: model.Source, place: Place) -> model.AnySource:
    names = model.Source.__struct_fields__
    given = [(name, source) for name in names if (source := getattr(item, name)) is not UNSET]
    if len(given) != 1:
        found = "no source" if not given else " and ".join(name for name, _ in given)
        raise place.error(f"found {found}, expected exactly one of {', '.join(names)}")
    name, only = given[0]
    source: model.AnySource = only
    if isinstance(only, SelfChecking):
        for path, problem in only.problems():
            raise place.at(name, *path).error(problem)
    return source
