import time
from contextlib import suppress
from pathlib import Path

from plugin.discovery.command import run_command


def shell(text: str, **more: float) -> tuple[int | None, bytes, bytes, bool]:
    outcome = run_command(
        ["sh", "-c", text], limit=float(more.pop("limit", 10.0)), most=int(more.pop("most", 65536))
    )
    return outcome.status, outcome.output, outcome.error, outcome.cut


def test_a_program_returns_its_status_and_output() -> None:
    assert shell("echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n", False)
    assert shell("kill -TERM $$")[0] == 128 + 15


def test_the_first_bytes_of_the_output_are_kept() -> None:
    status, output, _, cut = shell("head -c 3000000 /dev/zero; echo >&2", most=1000)
    assert (status, len(output), cut) == (0, 1000, True)


def test_the_last_bytes_of_the_output_are_kept() -> None:
    outcome = run_command(["sh", "-c", "seq 100000; seq 5 >&2"], limit=10.0, most=12, last=True)
    assert (outcome.output, outcome.error, outcome.cut) == (
        b"99999\n100000\n"[-12:],
        b"1\n2\n3\n4\n5\n",
        True,
    )


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    status, output, _, _ = shell(f"sleep 100 & echo $! > {pids}; echo begun; wait", limit=2.0)
    assert (status, output) == (None, b"begun\n")
    child = Path(f"/proc/{pids.read_text().strip()}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        while child.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


def test_a_child_that_keeps_the_streams_open_delays_nothing() -> None:
    assert shell("sleep 100 & echo done") == (0, b"done\n", b"", False)
