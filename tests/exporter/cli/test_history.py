"""devicelens history and devicelens who --at."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest
from click.testing import Result

from exporter.history.record import HoldingFacts
from exporter.mapping.state import State
from harness.application import application
from harness.commands import devicelens, serving
from harness.lives import Life, key
from harness.past import Past

START = 1_793_227_260.0  # 2026-10-28T22:41:00Z


Run = Callable[..., "asyncio.Future[Result]"]


@pytest.fixture
def life() -> Iterator[Life]:
    """Polls every 5 s from 22:41:05 on: A, A and B, then B alone."""
    life = Life(None, wall=START).start()
    a, b = key("GPU-0", "train-0"), key("GPU-1::0", "serve-1")
    for keys in ((), (a,), (a, b), (b,), (b,)):
        life.look(*keys)
    yield life
    life.die()


@pytest.fixture
def past(life: Life) -> Past:
    return Past(life)


@pytest.fixture
async def run(past: Past) -> AsyncGenerator[Run]:
    """Runs a command against an exporter with that past."""
    app = application(State(1, taken_at=past.life.wall), lambda: past.life.wall, past)
    async with serving(app) as url:

        async def run(*arguments: str) -> Result:
            return await devicelens(*arguments, "--url", url)

        yield run  # type: ignore[misc] # a coroutine function


AT = "2026-10-28T22:41:18Z"
GPU = "example.com/gpu"
TRAINED = ("2026-10-28T22:41:05Z..22:41:10Z", "2026-10-28T22:41:15Z..22:41:20Z")


def _cells(result: Result) -> list[list[str]]:
    """The table's cells; empty ones are not seen."""
    return [re.split(r" {2,}", line) for line in result.stdout.splitlines()]


async def test_history_is_a_table_of_holdings_with_both_ends(run: Run) -> None:
    result = await run("history")
    assert result.exit_code == 0, result.output
    assert _cells(result) == [
        ["RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "FROM", "TO", "HELD FOR"],
        [GPU, "GPU-1::0", "held", "ns/serve-1", "main", "2026-10-28T22:41:10Z..22:41:15Z", "10 s"],
        [GPU, "GPU-0", "ended", "ns/train-0", "main", *TRAINED, "5 s"],
    ]
    assert result.stderr == ""


async def test_who_at_shows_certain_and_possible_holders(run: Run) -> None:
    result = await run("who", "--at", AT)
    assert result.exit_code == 0, result.output
    assert _cells(result) == [
        ["RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE", "UNTIL"],
        [GPU, "GPU-0", "perhaps", "ns/train-0", "main", *TRAINED],
        [GPU, "GPU-1::0", "held", "ns/serve-1", "main", "2026-10-28T22:41:10Z..22:41:15Z"],
        [""],
        ["2 devices: 1 held, 1 perhaps"],
    ]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("what", "devices"),
    [
        ("gpu", ["GPU-1::0", "GPU-0"]),
        ("example.com/gpu=GPU-0", ["GPU-0"]),
        ("=GPU-1::0", ["GPU-1::0"]),
        ("gpu=GPU-1::0", ["GPU-1::0"]),
        ("gpu=::0", ["GPU-1::0"]),
        ("=gpu-1", ["GPU-1::0"]),
    ],
)
@pytest.mark.parametrize("command", [("history",), ("who", "--at", AT)])
async def test_matches_are_found(run: Run, command: tuple[str, ...], what: str, devices: list[str]) -> None:
    result = await run(*command, what, "-o", "json")
    assert result.exit_code == 0, result.output
    assert [entry["device"] for entry in json.loads(result.stdout)["holdings"]] == devices


async def test_names_like_those_of_the_query_are_suggested(run: Run) -> None:
    for arguments, words in (
        (("history", "=GPU-9"), "; did you mean GPU-0 or GPU-1::0?"),
        (("history", "--pod", "ns/train"), "was held by ns/train in that time; did you mean train-0?"),
        (("who", "--at", AT, "--pod", "ns/train"), "; did you mean train-0?"),
    ):
        result = await run(*arguments)
        assert (result.exit_code, result.stdout) == (3, "")
        assert words in result.stderr


@pytest.mark.parametrize("command", [("history",), ("who", "--at", AT)])
async def test_holdings_of_a_namespace(run: Run, command: tuple[str, ...]) -> None:
    result = await run(*command, "-n", "ns", "-o", "json")
    assert {entry["pod"] for entry in json.loads(result.stdout)["holdings"]} == {"train-0", "serve-1"}
    one = await run(*command, "-n", "ns", "--pod", "train-0", "--no-headers")
    assert [line.split()[3] for line in one.stdout.splitlines()] == ["ns/train-0"]
    none = await run(*command, "-n", "n")
    assert (none.exit_code, none.stdout) == (3, "")
    assert "no device on worker-3 was held by a pod of n " in none.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("history", "--pod", "ns/other"), "no device on worker-3 was held by ns/other in that time"),
        (("history", "=other"), "no device like 'other' on worker-3 was held in that time"),
        (("history", "other"), "no device of other on worker-3 was held in that time"),
        (
            ("who", "--at", AT, "--pod", "ns/other"),
            "no device on worker-3 was held by ns/other at 2026-10-28",
        ),
        (("who", "--at", AT, "=other"), "no device like 'other' on worker-3 was held at 2026-10-28T22:41:18"),
        (("who", "--at", AT, "other"), "has no resource 'other': there are example.com/gpu"),
        (
            ("who", "--at", "2026-10-28T22:00:00Z"),
            "it is unknown who held which device on worker-3 at 2026-10-28T22",
        ),
    ],
)
async def test_no_match_and_an_unknown_time_exit_with_3(
    run: Run, arguments: tuple[str, ...], words: str
) -> None:
    result = await run(*arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    assert words in result.stderr


async def test_gaps_are_reported_on_standard_error(run: Run, life: Life) -> None:
    life.sight.fail()
    life.pass_time(3600.0)
    life.look(key("GPU-2"))
    result = await run("history", "--from", "2026-10-28T22:41:20Z")
    assert result.exit_code == 0
    assert result.stderr == (
        "devicelens: holders from 2026-10-28T22:41:25.000Z to 2026-10-28T23:41:30.000Z are unknown: "
        "the kubelet did not answer\n"
    )
    assert "2026-10-28T22:41:25Z..23:41:30Z, kubelet silent" in result.stdout
    before = await run("who", "--at", "2026-10-28T22:00:00Z")
    assert "holders before 2026-10-28T22:41:05.000Z are unknown: the record begins later" in before.stderr


async def test_an_empty_answer_is_reported(run: Run, life: Life) -> None:
    life.look()
    life.look()
    result = await run("who", "--at", "now")
    assert result.exit_code == 3
    life.pass_time(-1.0)
    at = f"{life.wall}"
    empty = await run("who", "--at", at)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == "devicelens: no device was held on worker-3 at 2026-10-28T22:41:34.000Z\n"
    ranged = await run("history", "--from", at, "--to", at)
    assert (ranged.exit_code, ranged.stdout) == (0, "")
    assert ranged.stderr == "devicelens: no device was held on worker-3 in that time\n"


async def test_all_pages_are_fetched_up_to_the_limit(run: Run, life: Life) -> None:
    life.look(*(key(f"x{number}") for number in range(2500)))
    limited = await run("history", "--limit", "1200", "-o", "json")
    found = json.loads(limited.stdout)["holdings"]
    assert len(found) == len({entry["id"] for entry in found}) == 1200
    assert "there are more: these are the newest 1200" in limited.stderr
    everything = await run("who", "--at", str(life.wall), "-o", "json")
    assert len(json.loads(everything.stdout)["holdings"]) == 2500


async def test_names_from_outside_cannot_move_the_cursor(run: Run, life: Life) -> None:
    life.look(key("GPU\x1b[2J", "p\u202e"))
    for arguments in (("history",), ("who", "--at", str(life.wall)), ("history", "-o", "json")):
        result = await run(*arguments)
        assert result.exit_code == 0
        assert "\x1b" not in result.output
        assert "\u202e" not in result.output


async def test_a_query_that_the_exporter_refuses_is_wrong_usage(run: Run) -> None:
    result = await run("history", "x" * 600)
    assert (result.exit_code, "at most 512 characters" in result.stderr) == (2, True)


async def test_an_exporter_without_history_exits_with_1(run: Run, past: Past) -> None:
    past.error = "no answer within 5 s: is the disk slow?"
    for arguments in (("history",), ("who", "--at", AT)):
        result = await run(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "503 Service Unavailable: history cannot be asked: no answer within 5 s" in result.stderr
        assert result.stderr.count("\n") == 1


async def test_claimed_devices_are_found_by_what_their_container_asked_by(run: Run, life: Life) -> None:
    claimed = key("pool-a/gpu-0", "train-2", "gpu.example.com")
    facts = HoldingFacts("", "", "", "", "", "ns", "train-2-gpu-x7k2p", "share-1", "nvidia.com/gpu")
    for _ in range(2):
        life.see({claimed: (facts,), key("GPU-1::0", "serve-1"): (HoldingFacts(),)})
    at = str(life.wall - 1)
    for what in ("nvidia.com/gpu", "gpu.example.com", "nvidia.com/gpu=gpu-0", "=pool-a/gpu-0"):
        for command in (("history", what), ("who", what, "--at", at)):
            result = await run(*command)
            assert result.exit_code == 0, result.output
            assert _cells(result)[1][:4] == [
                "gpu.example.com",
                "pool-a/gpu-0 (share-1)",
                "held",
                "ns/train-2",
            ]
    wide = await run("history", "nvidia.com/gpu", "-o", "wide")
    assert "ns/train-2-gpu-x7k2p  nvidia.com/gpu" in wide.stdout


async def test_who_at_says_of_which_driver_free_devices_are_unknown(run: Run, life: Life) -> None:
    life.held_only = True
    life.look()
    life.look()
    for what in ((), (GPU,)):
        result = await run("who", *what, "--at", str(life.wall), "--state", "free")
        assert result.exit_code == 3
        assert f"it is unknown which devices of {GPU} were free at" in result.stderr
        assert "no ResourceSlice named the others" in result.stderr


async def test_who_at_lists_free_unhealthy_and_unknown_devices(run: Run, life: Life) -> None:
    held = key("GPU-1::0", "serve-1")
    life.known = {"GPU-0": True, "GPU-1::0": True, "GPU-2": True, "GPU-3": False}
    life.look(held)
    life.look(held)
    at = str(life.wall - 5)
    result = await run("who", "--at", at)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [cells[1:3] for cells in _cells(result)[1:5]] == [
        ["GPU-0", "free"],
        ["GPU-1::0", "held"],
        ["GPU-2", "free"],
        ["GPU-3", "unhealthy"],
    ]
    assert _cells(result)[-1] == ["4 devices: 1 held, 2 free, 1 unavailable"]
    wide = await run("who", "--at", at, "-o", "wide")
    assert ["example.com/gpu", "GPU-0", "free", "worker-3"] in _cells(wide)
    part = await run("who", "--at", at, "gpu=gpu-0", "-o", "json")
    assert json.loads(part.stdout)["devices"] == [
        {"resource": "example.com/gpu", "device": "GPU-0", "parent": None, "state": "free", "healthy": True}
    ]
    life.sight.fail()
    life.pass_time(3600.0)
    gap = await run("who", "--at", str(life.wall - 60))
    assert gap.exit_code == 0
    assert "the kubelet did not answer" in gap.stderr
    assert _cells(gap)[-1] == ["4 devices: 1 perhaps, 3 unknown"]


async def test_who_at_keeps_devices_of_a_state(run: Run, life: Life) -> None:
    life.known = {"GPU-0": True, "GPU-1::0": True, "GPU-3": False}
    life.look(key("GPU-1::0", "serve-1"))
    at = ("--at", str(life.wall), "--no-headers")
    for states, found in (
        ("free", ["GPU-0"]),
        ("unhealthy", ["GPU-3"]),
        ("held", ["GPU-1::0"]),
        ("held,free", ["GPU-0", "GPU-1::0"]),
    ):
        result = await run("who", *at, "--state", states)
        assert result.exit_code == 0, result.output
        assert [line.split()[1] for line in result.stdout.splitlines() if GPU in line] == found
        assert ("history does not say which held devices were unhealthy" in result.stderr) == (
            states == "unhealthy"
        )
    none = await run("who", *at, "--state", "free", "=GPU-3")
    assert (none.exit_code, none.stdout) == (3, "")
    assert "no free device like 'GPU-3' on worker-3 was there at " in none.stderr


async def test_free_devices_that_are_not_recorded_are_unknown(run: Run, life: Life) -> None:
    life.known = None
    life.look(key("GPU-1::0", "serve-1"))
    unknown = "it is unknown which devices of worker-3 were free at "
    result = await run("who", "--at", str(life.wall))
    assert (result.exit_code, _cells(result)[-1]) == (0, ["1 device: 1 held"])
    assert unknown in result.stderr
    free = await run("who", "--at", str(life.wall), "--state", "free")
    assert (free.exit_code, free.stdout, unknown in free.stderr) == (3, "", True)
    held = await run("who", "--at", str(life.wall), "--state", "held")
    assert (held.exit_code, held.stderr) == (0, "")


async def test_more_devices_than_a_page_are_fetched(run: Run, life: Life) -> None:
    life.known = {f"x{number}": True for number in range(2500)}
    life.look(*(key(f"x{number}") for number in range(300)))
    everything = json.loads((await run("who", "--at", str(life.wall), "-o", "json")).stdout)
    assert (len(everything["holdings"]), len(everything["devices"])) == (300, 2200)
