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
    given: dict[str, model.AnySource] = {
        name: source for name in names if (source := getattr(item, name)) is not UNSET
    }
    if len(given) != 1:
        found = " and ".join(given) or "no source"
        raise place.error(f"found {found}, expected exactly one of {', '.join(names)}")
    ((name, only),) = given.items()
    for path, problem in only.problems():
        raise place.at(name, *path).error(problem)
    return only
