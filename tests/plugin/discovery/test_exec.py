import json
import sys
import textwrap
from pathlib import Path

import pytest

from plugin.discovery.exec import MAX_OUTPUT, Exec, ExecScanner
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def scan(here: HostRoot, command: list[str], timeout: str = "10s") -> Findings:
    return ExecScanner(Exec(command, timeout=timeout)).scan(here)


def printed(here: HostRoot, text: str) -> Findings:
    return scan(here, ["/bin/echo", text])


def test_printed_devices(here: HostRoot, host: Path) -> None:
    (host / "dev").mkdir()
    (host / "dev/x0").touch()
    devices = [
        {
            "name": "x0",
            "path": "/dev/x0",
            "attrs": {"model": "X\u001b[31m " + "9" * 2000},
            "numa": 1,
            "nodes": ["/dev/x0", "/dev/x0c", "/dev/x0"],
            "sysfs": "/sys/devices/x0",
        },
        {"name": "x1", "unhealthy": "too hot\n", "numa": -1},
    ]
    findings = printed(here, json.dumps(devices))
    assert findings.found == (
        Found(
            "x0",
            "/dev/x0",
            {"model": ("X [31m " + "9" * 2000)[:1024]},
            numa_node=1,
            nodes=("/dev/x0", "/dev/x0c"),
            sysfs="/sys/devices/x0",
        ),
        Found("x1", absent="too hot"),
    )
    assert findings.notes == ()
    source = ExecScanner(Exec(["/bin/true"]))
    assert source.resolve(here, findings.found[0]) is not None
    (host / "dev/x0").unlink()
    assert source.resolve(here, findings.found[0]) is None


def test_a_program_that_prints_no_device(here: HostRoot) -> None:
    assert printed(here, "[]").notes == ("/bin/echo printed no device",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "something else than a JSON array"),
        ("nonsense", "something else than a JSON array"),
        ("{}", "Expected `array`, got `object`"),
        ('[{"nam": "x"}]', "unknown field `nam`"),
        ("[{}]", "missing required field `name`"),
        ('[{"name": ""}]', r"at `$[0].name`"),
        ('[{"name": "x"}, {"name": "y", "numa": 5000}]', "at `$[1].numa`"),
        ('[{"name": "x", "attrs": {"a": 1}}]', "Expected `str`, got `int`"),
        ('[{"name": "x"}, {"name": "x"}]', "number 1: found the name 'x' a second time"),
        ('[{"name": "x", "path": "dev/x"}]', "number 0: found path 'dev/x', expected an absolute path"),
        ('[{"name": "x", "nodes": [""]}]', "number 0: found nodes ''"),
        ('[{"name": "x", "nodes": ["/dev/../etc"]}]', "expected a path without '..'"),
        ('[{"name": "x", "attrs": {"A b": ""}}]', "found the attribute 'A b'"),
        ("[" * 5000, "something else than a JSON array"),
    ],
)
def test_bad_output_is_one_clear_error(here: HostRoot, text: str, said: str) -> None:
    with pytest.raises(OSError, match="printed") as caught:
        printed(here, text)
    assert caught.value.filename == "/bin/echo"
    assert said in (caught.value.strerror or "")
    assert len(caught.value.strerror or "") < 500


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import time; time.sleep(60)", "did not end within 2 s"),
        (
            "import sys; sys.stderr.write('first\\x1b[31m\\nsecond'); sys.exit(3)",
            "exit status 3: first\\x1b[31m",
        ),
        ("import os; os.kill(os.getpid(), 9)", "exit status 137"),
        (f"print('[' + ' ' * {MAX_OUTPUT} + ']')", f"printed more than {MAX_OUTPUT} bytes"),
    ],
)
def test_the_error_of_a_program_has_its_first_line(here: HostRoot, code: str, said: str) -> None:
    with pytest.raises(OSError, match=r"exit status|printed more|did not end") as caught:
        scan(here, python(code), timeout="2s" if "sleep" in code else "15s")
    assert caught.value.strerror == said


def test_a_program_that_is_not_there(here: HostRoot) -> None:
    with pytest.raises(OSError, match="cannot be run: No such file or directory"):
        scan(here, ["/nope/program"])


def test_the_environment_of_a_program(here: HostRoot, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    code = """
    import json, os
    given = {name.lower(): value for name, value in os.environ.items() if name != "LC_CTYPE"}
    print(json.dumps([{"name": "e", "attrs": given}]))
    """
    attrs = dict(scan(here, python(code)).found[0].attrs)
    assert attrs.pop("path")
    assert attrs == {"host_root": f"{host}", "lang": "C.UTF-8"}


def test_equal_sources_run_a_program_once_in_its_interval(here: HostRoot, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.touch()
    code = f"""
    import sys
    open({str(runs)!r}, "a").write("x")
    count = len(open({str(runs)!r}).read())
    print('[{{"name": "%d"}}]' % count)
    sys.exit(count == 3)
    """
    now = 100.0
    written = Exec(python(code), interval="10s")
    first, second = ExecScanner(written, lambda: now), ExecScanner(written, lambda: now)

    def name(source: ExecScanner) -> str:
        return source.scan(here).found[0].name

    assert [name(first), name(second), name(first)] == ["1", "1", "1"]
    now += 9.99
    assert name(second) == "1"
    now += 0.01
    assert name(second) == "2"
    now += 10
    for source in (first, second):
        with pytest.raises(OSError, match="exit status 1"):
            source.scan(here)
    now += 10
    assert name(first) == "4"
