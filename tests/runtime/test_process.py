"""runtime.process as real processes: a signal ends them, whatever hangs for a minute.

tests/e2e and tests/faults check that both programs end within two seconds.
"""

import platform
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LIMIT = 30.0
"""Seconds for a Python process to start or to end on a busy machine."""

ROOT = Path(__file__).parents[2]

PRELUDE = """
import asyncio, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from runtime.log import configure
from runtime.process import Fatal, run, run_actors
configure()

async def idle():
    print("ready", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)

def started(*actors):
    async def main(stop):
        await run_actors([*(actor() for actor in actors)], stop)
    sys.exit(run(main))
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process from the end of a program; what still runs at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def begin(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _until_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def _end(process: "subprocess.Popen[str]", *signals: signal.Signals) -> tuple[int, str, str]:
    """Send signals to a process that is ready; its status and output."""
    _until_ready(process)
    for number in signals:
        process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_anything_runs_ends_the_process(number: signal.Signals, start: Start) -> None:
    process = start(
        """
        from runtime.process import end_at_once_on_signals
        end_at_once_on_signals()
        print("ready", flush=True)
        # Short: a signal just before a sleep is noticed after it.
        while True:
            time.sleep(0.05)
        """
    )
    assert _end(process, number) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_cleanly(number: signal.Signals, start: Start) -> None:
    status, out, err = _end(start("started(idle)"), number)
    assert (status, out) == (0, "cancelled\n")
    (line,) = err.splitlines()
    assert line.endswith(f"level=info component=process msg=ending signal={number.name}")


def test_the_event_loop_measures_its_lag(start: Start) -> None:
    process = start(
        """
        from runtime.loop_lag import take_lag
        async def hold():
            time.sleep(0.02)
            await asyncio.sleep(0)
            print(take_lag() >= 0.02, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
            await idle()
        started(hold)
        """
    )
    assert process.communicate(timeout=LIMIT)[0] == "True\nready\ncancelled\n"


def test_a_signal_wakes_an_event_loop_that_waits_without_a_timer(start: Start) -> None:
    """Another thread receives it while the main thread waits, as a signal just before the wait also does."""
    process = start(
        """
        def waits():
            with open(f"/proc/self/task/{os.getpid()}/status") as file:
                fields = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
            return fields["State"][0] == "S" and fields["voluntary_ctxt_switches"]
        def receive():
            before = None
            while not (now := waits()) or now != before:
                before = now
                time.sleep(0.05)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        async def alone():
            threading.Thread(target=receive, daemon=True).start()
            await idle()
        started(alone)
        """
    )
    out, _ = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (0, "ready\ncancelled\n")


BLOCKED = {
    "an actor that does not end": """
        async def stubborn():
            print("ready", flush=True)
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass
        started(stubborn)
        """,
    "a thread of the default executor": """
        async def blocked():
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
            await idle()
        started(blocked)
        """,
    "a thread that is not a daemon": """
        async def blocked():
            threading.Thread(target=time.sleep, args=(60,)).start()
            await idle()
        started(blocked)
        """,
    "the event loop": """
        async def blocked():
            print("ready", flush=True)
            # Short: a signal just before a sleep is noticed after it.
            while True:
                time.sleep(0.05)
        started(blocked)
        """,
    "the event loop on the way out": """
        async def blocked():
            try:
                await idle()
            finally:
                time.sleep(60)
        started(blocked)
        """,
}


def test_a_signal_ends_a_process_whatever_blocks(start: Start) -> None:
    """All of them together: each takes its whole two seconds."""
    processes = {what: start(program) for what, program in BLOCKED.items()}
    for process in processes.values():
        _until_ready(process)
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    for what, process in processes.items():
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 1, what
        # Either the event loop still logs it, or the stacks show what blocks.
        assert "shutdown timed out" in err or "most recent call first" in err, what


def test_threads_and_exit_handlers_are_awaited_and_objects_are_left_to_the_kernel(start: Start) -> None:
    process = start(
        """
        import atexit

        class Slow:
            def __del__(self):
                os.write(1, b"taken apart\\n")
                time.sleep(60)
        slow = Slow()

        async def busy():
            atexit.register(print, "called")
            threading.Thread(target=lambda: (time.sleep(0.3), print("awaited", flush=True))).start()
            await idle()
        started(busy)
        """
    )
    status, out, err = _end(process, signal.SIGTERM)
    assert (status, out) == (0, "cancelled\nawaited\ncalled\n"), err


def test_a_second_signal_ends_a_process_at_once(start: Start) -> None:
    process = start(
        """
        async def slow():
            try:
                await idle()
            finally:
                print("ending", flush=True)
                await asyncio.sleep(3600)
        async def main(stop):
            await run_actors([slow()], stop)
        sys.exit(run(main, end_within=600))
        """
    )
    _until_ready(process)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["cancelled\n", "ending\n"]
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 1


@pytest.mark.parametrize(
    ("raised", "lines"),
    [
        ('Fatal("--flag x: found this, expected that")', ["devicelens: --flag x: found this, expected that"]),
        ('ExceptionGroup("both", [Fatal("one"), Fatal("two")])', ["devicelens: one"]),
        (r'Fatal("unix:/a\nb\x1b[2J: no")', [r"devicelens: unix:/a\nb\x1b[2J: no"]),
        ('KeyError("a defect")', ["KeyError: 'a defect'"]),
        (
            'ExceptionGroup("both", [KeyError("a defect"), Fatal("cannot")])',
            ["devicelens: cannot", "KeyError: 'a defect'"],
        ),
    ],
)
def test_a_failure_is_one_line_and_a_defect_has_its_traceback(
    raised: str, lines: list[str], start: Start
) -> None:
    process = start(
        f"""
        async def failing():
            raise {raised}
        started(idle, failing)
        """
    )
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (1, "ready\ncancelled\n")
    for line in lines:
        assert line in err
    if "KeyError" not in raised:
        assert err.splitlines() == lines


def test_a_fatal_before_any_actor_is_one_line_alike(start: Start) -> None:
    process = start(
        """
        async def main(stop):
            raise Fatal("cannot")
        sys.exit(run(main))
        """
    )
    assert process.communicate(timeout=LIMIT) == ("", "devicelens: cannot\n")
    assert process.returncode == 1


def test_a_signal_during_the_start_ends_a_process_once_it_can(start: Start) -> None:
    process = start(
        """
        async def main(stop):
            print("ready", flush=True)
            time.sleep(0.3)
            await run_actors([idle()], stop)
        sys.exit(run(main))
        """
    )
    assert _end(process, signal.SIGTERM)[0] == 0


_ALLOCATING = """
import ctypes, sys, threading
from runtime.process import share_one_arena
if sys.argv[1] == "shared":
    share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(4)
def work():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def _ran(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-c", program, *arguments)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def _arenas(how: str) -> int:
    ran = _ran(_ALLOCATING, how)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr.count("Arena ")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_all_threads_share_one_arena() -> None:
    assert _arenas("shared") == 1 < _arenas("own")


def test_garbage_is_collected_and_data_are_visited_once(start: Start) -> None:
    process = start(
        """
        import gc, weakref
        gc.disable()
        class Cyclic:
            def __init__(self):
                self.own = self
        async def main(stop):
            print(gc.isenabled())
            imported = gc.get_freeze_count()
            gc.collect()
            few = gc.get_freeze_count() == imported
            data = [[number] for number in range(30_000)]
            gc.collect()
            print(few, gc.get_freeze_count() >= imported + 30_000)
            data.clear()
            gc.collect()
            print(gc.get_freeze_count() <= imported + 1000)
            garbage = weakref.ref(Cyclic())
            gc.collect()
            print(garbage())
        run(main)
        """
    )
    assert process.communicate(timeout=LIMIT)[0].split() == ["True", "True", "True", "True", "None"]


_CALLING = """
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


def test_a_process_that_keeps_the_grpc_runtime_survives_without_descriptors() -> None:
    ended = _ran(_CALLING.format(context="grpc_runtime"))
    assert (ended.returncode, ended.stdout) == (0, "lives\n"), ended.stderr
    # If this fails, gRPC does not abort any more, and `grpc_runtime` can go.
    assert _ran(_CALLING.format(context="nullcontext")).returncode != 0
