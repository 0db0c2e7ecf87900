"""What is in force at a moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Protocol

from runtime.protection.passwords import Gate
from runtime.protection.rate import Bucket
from runtime.protection.validity import Validity


@dataclass(frozen=True, slots=True)
class Rules:
    """What connections and requests have to meet from now on. An empty header is not to be sent.

    `validity` is that of the certificate served that ends first.
    """

    tls: SSLContext | None = None
    validity: Validity | None = None
    allowed_sans: frozenset[str] | None = None
    gate: Gate | None = None
    bucket: Bucket | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


OPEN = Rules()
"""Nothing is asked of anybody: there is no --web.config.file."""


class Protected(Protocol):
    """Whoever knows the rules of the moment."""

    @property
    def rules(self) -> Rules:
        """What is in force now."""
        ...

    @property
    def problem(self) -> str:
        """Why the files were refused when they were last read; "" if they were not."""
        ...
