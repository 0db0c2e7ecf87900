"""The configuration and the files that it names, read together. Blocking, bounded."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runtime.config_file import MAX_BYTES, ConfigError
from runtime.protection.language import WebConfig, load


@dataclass(frozen=True, slots=True)
class Material:
    """What was read; equal to another if nothing changed. `read` is by the keys of tls_server_config."""

    config: WebConfig = field(compare=False)
    content: bytes = field(repr=False)
    read: Mapping[str, bytes] = field(repr=False)

    @property
    def paths(self) -> frozenset[Path]:
        """The files that it names."""
        tls = self.config.tls
        return (
            frozenset(source.path for source in tls.sources if source.path is not None)
            if tls
            else frozenset()
        )


def gather(file: Path, *, certificates: bool = True) -> Material:
    """What `file` says, and with `certificates` what the files that it names have. Raises ConfigError."""
    try:
        content = _read(file)
    except OSError as error:
        raise ConfigError(str(file), None, (), f"cannot be read: {error.strerror or error}") from None
    return gathered(content, str(file), file.parent, certificates=certificates)


def gathered(content: bytes, source: str, directory: Path, *, certificates: bool = True) -> Material:
    """The same of a file that was read already. Raises ConfigError."""
    config = load(content, source, directory)
    read: dict[str, bytes] = {}
    for wanted in config.tls.sources if config.tls is not None and certificates else ():
        try:
            read[wanted.key] = wanted.text if wanted.path is None else _read(wanted.path)
        except OSError as error:
            raise config.error(
                wanted.key, f"{wanted.path} cannot be read: {error.strerror or error}"
            ) from None
    return Material(config, content, read)


def _read(path: Path) -> bytes:
    """A regular file's content. Raises OSError; for anything else too: a pipe may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"it has more than {MAX_BYTES >> 10} KiB")
    return content
