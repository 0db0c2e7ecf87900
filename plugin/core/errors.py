"""One clear error for a configuration: daemon.errors, which both processes share."""

from daemon.errors import ConfigError, Path, advice, dotted, quoted

__all__ = ["ConfigError", "Path", "advice", "dotted", "quoted"]
