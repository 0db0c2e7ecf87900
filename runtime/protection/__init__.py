"""What `--web.config.file` asks for: TLS, passwords, headers, a rate. Knows no HTTP server.

model       the file's keys as Prometheus' exporters have them
language    a file read and checked: what is asked for, or one clear error
suites      names of cipher suites and curves, as Go has them and as OpenSSL has them
tls         an SSLContext of certificates that were read
validity    from when until when certificates are good
names       whose certificates are let in
passwords   who is let in by a password; hashing off the event loop, bounded
rate        a token bucket
material    the file and the files that it names, read together
rules       what is in force at a moment
enforcing   rules made of what was read
reload      keeps that to what the files say
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.protection.reload import Protection

__all__ = ["protection_by"]


async def protection_by(file: Path | None) -> "Protection | None":
    """What `file` asks of clients, read for the first time; None without one. Raises Fatal."""
    if file is None:
        return None
    # Imported where it is asked for: YAML, TLS and passwords are for few.
    from runtime.protection.reload import Protection  # noqa: PLC0415

    protection = Protection(file)
    await protection.begin()
    return protection
