"""A place in a document, from which its values are checked and its templates compiled."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from plugin import names
from plugin.config.templates import DEVICE_FIELDS, Template, TemplateError, compile_template
from runtime.config_file import ConfigError, Document, Path, quoted
from runtime.flags import parse_duration

Check = Callable[[str], str | None]
"""What makes a text unfit, in words that begin with what was expected; None where it is fit."""

FOUND: Final = frozenset({"device"})
"""Variables where a device is all there is."""

_BEGINNINGS: Final[tuple[tuple[tuple[Check, ...], tuple[str, ...], str], ...]] = (
    ((names.path_problem, names.container_path_problem), ("/",), "an absolute path"),
    ((names.url_problem,), ("http://", "https://"), "an address that begins with http:// or https://"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is written.

    `resource` is the resource's name; None where devices name it. `attributes` are the names of those
    that its devices may have; None where that cannot be told.
    """

    document: Document
    path: Path
    resource: str | None = None
    attributes: frozenset[str] | None = None

    def at(self, *steps: str | int) -> "Place":
        """A place below."""
        return replace(self, path=(*self.path, *steps))

    def error(self, problem: str) -> ConfigError:
        """The error `problem` at this place."""
        return self.document.error(self.path, problem)

    def check(self, text: str, check: Check) -> str:
        """`text`, which is fit. Raises ConfigError."""
        problem = check(text)
        if problem is not None:
            raise self.error(f"found {quoted(text)}, {problem}")
        return text

    def template(
        self,
        text: str,
        variables: frozenset[str],
        check: Check | None = None,
        fields: frozenset[str] = DEVICE_FIELDS,
    ) -> Template:
        """Compile a template; one that no device can change is checked now as when it is rendered."""
        try:
            template = compile_template(text, variables, fields, self.attributes)
            if check is None:
                return template
            if template.uses - {"resource"} or (template.uses and self.resource is None):
                self._check_beginning(text, check)
                return template
            rendered = template.render({"resource": self.resource})
        except TemplateError as error:
            raise self.error(f"in the template {quoted(text)}: {error}") from None
        self.check(rendered, check)
        return template

    def _check_beginning(self, text: str, check: Check) -> None:
        """What is written before the first variable tells whether a path or an address can come of it."""
        before = text.partition("{")[0]
        for checks, beginnings, expected in _BEGINNINGS:
            if check in checks and not any(before.startswith(b) or b.startswith(before) for b in beginnings):
                raise self.error(f"found {quoted(text)}, expected {expected}")

    def duration(self, text: str, least: str, most: str) -> float:
        """Seconds, from `least` to `most`. Raises ConfigError."""
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise self.error(str(error)) from None
        if not parse_duration(least) <= seconds <= parse_duration(most):
            raise self.error(f"found {quoted(text)}, expected from {least} to {most}")
        return seconds
