"""What both processes share: flags, logs, process life, directory watching, and HTTP serving."""

__version__ = "0.1.0"
