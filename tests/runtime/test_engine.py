"""gRPC where descriptors run out."""

import subprocess
import sys
import textwrap
from pathlib import Path

_PROGRAM = """
import asyncio, os, resource
from contextlib import nullcontext
import grpc.aio
from runtime.process import grpc_runtime

async def call():
    alone = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel("unix:///nobody", options=alone) as channel:
        try:
            await channel.unary_unary("/a/b")(b"", timeout=1)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error

async def main():
    async with {context}():
        await call()
        present = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (present, present))
        for _ in range(50):
            await call()
    print("lives")

asyncio.run(main())
"""


def _runs_out(context: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM.format(context=context))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_that_keeps_the_engine_lives_on_without_descriptors() -> None:
    ended = _runs_out("grpc_runtime")
    assert (ended.returncode, ended.stdout) == (0, "lives\n"), ended.stderr
    # Whenever this fails gRPC has learnt to live without, and nothing needs to be kept any more.
    assert _runs_out("nullcontext").returncode != 0
