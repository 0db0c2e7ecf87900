"""Rules made of what was read, and compared with what was in force before."""

from collections.abc import Callable
from ssl import SSLContext

from runtime.config_file import ConfigError
from runtime.protection.language import WebConfig
from runtime.protection.material import Material
from runtime.protection.passwords import Gate, Hashing
from runtime.protection.rate import Bucket
from runtime.protection.rules import OPEN, Rules
from runtime.protection.tls import PemError, context
from runtime.protection.validity import earliest


def enforce(
    material: Material,
    hashing: Hashing,
    clock: Callable[[], float],
    before: tuple[WebConfig, Rules] | None = None,
) -> Rules:
    """The rules that `material` asks for; what did not change since `before` keeps its memory.

    Raises ConfigError where certificates or keys cannot be used.
    """
    config = material.config
    old, rules = before if before is not None else (None, OPEN)
    tls = certified(material)
    if config.rate is None:
        bucket = None
    elif old is not None and old.rate == config.rate:
        bucket = rules.bucket
    else:
        bucket = Bucket(config.rate.interval, config.rate.burst, clock)
    if not config.users:
        gate = None
    elif old is not None and old.users == config.users:
        gate = rules.gate
    else:
        gate = Gate(config.users, hashing)
    sans = None if config.tls is None else config.tls.allowed_sans
    validity = None if config.tls is None else earliest(material.read[config.tls.cert.key])
    return Rules(tls, validity, sans, gate, bucket, config.headers)


def certified(material: Material) -> SSLContext | None:
    """TLS with these certificates; None without TLS. Raises ConfigError where they cannot be used."""
    config = material.config
    try:
        return None if config.tls is None else context(config.tls, material.read)
    except PemError as error:
        raise _placed(config, error) from None


def weakened(old: WebConfig, new: WebConfig) -> str:
    """What `new` takes away that a running process does not give up; "" for nothing.

    A file that is written while it is read can look like one that asks for nothing.
    """
    if (old.tls is None) is not (new.tls is None):
        return "it switches TLS off" if new.tls is None else "it switches TLS on"
    if old.users and not new.users:
        return "it asks nobody for a password any more"
    if old.tls is not None and new.tls is not None:
        if new.tls.clients < old.tls.clients:
            return "it asks less of clients' certificates"
        if old.tls.allowed_sans is not None and new.tls.allowed_sans is None:
            return "it lets clients' certificates in whatever their names are"
    return ""


def _placed(config: WebConfig, error: PemError) -> ConfigError:
    source = (
        next((s for s in config.tls.sources if s.key == error.key), None) if config.tls is not None else None
    )
    where = f"{source.path} " if source is not None and source.path is not None else ""
    return config.error(error.key, f"{where}{error.problem}")
