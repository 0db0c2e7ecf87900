"""gRPC's engine, kept: it ends with the last channel or server of a process, and the next begins another."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio

_NOWHERE: Final = "unix:///nowhere"


@asynccontextmanager
async def engine_kept() -> AsyncGenerator[None]:
    """Keep the engine for as long as the context lasts, whatever channels and servers come and go meanwhile.

    To begin another takes descriptors, and gRPC aborts the process where none is left. A channel over which
    nothing is called connects to nothing.
    """
    async with grpc.aio.insecure_channel(_NOWHERE):
        yield
