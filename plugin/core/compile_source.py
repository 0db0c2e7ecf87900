"""Sources: exactly one in each item of `discover`, its own contradictions told with their place."""

from msgspec import UNSET

from plugin.core import model
from plugin.core.place import Place


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
    name = given[0][0]
    source: model.AnySource = given[0][1]
    for path, problem in source.problems():
        raise place.at(name, *path).error(problem)
    return source
