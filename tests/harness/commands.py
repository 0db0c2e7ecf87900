"""Commands of the command line in this process, and the servers that they query."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from devicelens import main


async def devicelens(*arguments: str, **environment: str | None) -> Result:
    """The result of a command, which has no variables but these, and time on a machine that is overloaded."""
    variables = {"DEVICELENS_URL": None, "DEVICELENS_PROMETHEUS": None, "DEVICELENS_TIMEOUT": "30s"}
    runner = CliRunner(env={**variables, **environment})
    return await asyncio.to_thread(runner.invoke, main, arguments)


@asynccontextmanager
async def serving(app: web.Application) -> AsyncGenerator[str]:
    """The address of a server."""
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/")


async def against(app: web.Application, *arguments: str) -> Result:
    """The result of a command that queries the server."""
    async with serving(app) as url:
        return await devicelens(*arguments, "--url", url)
