"""One clear error for a configuration: which file, which line, which path in it, found, expected."""

from difflib import get_close_matches

from daemon.text import visible

Path = tuple[str | int, ...]
"""Where in a document: keys and indexes from its root."""


class ConfigError(ValueError):
    """A configuration that cannot be used. Its text is one line that a person can act upon."""

    def __init__(self, source: str, line: int | None, path: Path, problem: str) -> None:
        self.source = source
        self.line = line
        self.path = path
        self.problem = problem
        place = visible(source) if line is None else f"{visible(source)}:{line}"
        where = f" {visible(dotted(path))}:" if path else ""
        super().__init__(f"{place}:{where} {visible(problem)}")


def dotted(path: Path) -> str:
    """A path as people write it: `resources[0].discover[1].glob.paths`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def advice(word: str, known: list[str] | tuple[str, ...]) -> str:
    """`, did you mean 'x'?` for the known word nearest to `word`; empty where none is near."""
    near = get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    for candidate in known:
        if near and candidate.lower() == near[0]:
            return f", did you mean '{candidate}'?"
    return ""


def quoted(value: object, limit: int = 80) -> str:
    """A found value for a message: text in quotes, everything cut to `limit` characters."""
    if isinstance(value, str):
        return f"'{visible(value, limit)}'"
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return visible(str(value), limit)
        case dict():
            return "a mapping"
        case _:
            return "a list"
