"""exporter.cli.sources: wrong usage of every command, and the source that flags and environment choose."""

import pytest
from click.testing import CliRunner

from devicelens import main

FLEET = ("who", "--prometheus", "http://a")
SOCKET = ("who", "--socket", "/x")
PROMETHEUS = {"DEVICELENS_PROMETHEUS": "http://a"}


def refusal(*arguments: str, **environment: str | None) -> str:
    """The message of a command that is used wrongly."""
    runner = CliRunner(env={"DEVICELENS_URL": None, "DEVICELENS_PROMETHEUS": None, **environment})
    result = runner.invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return " ".join(result.stderr.replace("│", "").split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("who", "--url", "node:10190"), "found 'node:10190', expected http://HOST:PORT"),
        (("who", "--timeout", "5"), "expected a duration such as"),
        (("who", "--timeout", "0"), "expected a duration above 0"),
        (("who", "--socket", "/" + "x" * 200), "socket path is 201 bytes long"),
        (("who", "-o", "yaml"), "'yaml' is not one of"),
        (("who", "gpu="), "expected RESOURCE or RESOURCE=DEVICE"),
        (("history", "="), "expected RESOURCE or RESOURCE=DEVICE"),
        *((("who", "--pod", pod), "expected NAMESPACE/NAME") for pod in ("", "a", "/a", "a/", "a/b/c")),
        *((("who", "-n", "a", "--pod", pod), "expected NAME beside --namespace") for pod in ("", "a/b")),
        (("history", "-n", "a/b"), "found 'a/b', expected a name"),
        ((*SOCKET, "--url", "http://x"), "--url and --socket: expected one of them"),
        ((*SOCKET, "--selector", 'a="b"'), "--selector: expected --prometheus, kubelets have"),
        ((*SOCKET, "--token-file", "/y"), "uses neither tokens nor TLS"),
        ((*SOCKET, "--at", "now"), "a kubelet has no history"),
        (("history", *SOCKET[1:]), "a kubelet has no history"),
        (("who", "--node", "x"), "--node: expected --prometheus, exporters have one node each"),
        ((*FLEET, "--socket", "/x"), "--socket and --prometheus: expected one of them"),
        ((*FLEET, "--url", "http://x"), "--url and --prometheus: expected one of them"),
        ((*FLEET, "--at", "-1h", "--watch"), "--at and --watch: the past does not change"),
        ((*FLEET, "--watch=0.1s"), "expected at least 0.2s"),
        ((*FLEET, "--watch=x"), "expected a duration such as"),
        (("who", "--at", "tomorrow"), "Invalid value for --at: found 'tomorrow'"),
        (("history", "--from", "x"), "Invalid value for --from: found 'x', expected 2026-11-20T03:12:00Z"),
        (("history", "--from", "-1h", "--to", "-2h"), "expected a time before that of --to"),
        (("history", "--from", "-1h", "--at", "-2h"), "expected either --at, or --from and --to"),
        (("history", "--limit", "0"), "0 is not in the range"),
        (("history", "--step", "1m"), "there is no step"),
        (("history", *FLEET[1:]), "history queries exporters: use --url"),
        (("history", "--at", "-1h", *FLEET[1:]), "devicelens who --prometheus URL --at TIME"),
        (("explain",), "Missing argument"),
        (("explain", ""), "expected a device's id"),
        (("explain", "="), "expected a device's id"),
        (("explain", "GPU-0", "--at", "-1h"), "explain has the present only"),
        (("explain", "GPU-0", *FLEET[1:]), "explain queries exporters: use --url"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(*arguments)


def test_the_environment_is_checked_too() -> None:
    both = refusal("who", DEVICELENS_URL="http://b", **PROMETHEUS)
    assert "DEVICELENS_URL and DEVICELENS_PROMETHEUS are both set: say which" in both
    assert "--prometheus: found 'b:9090', expected http" in refusal("who", DEVICELENS_PROMETHEUS="b:9090")
    for command in (("history",), ("explain", "GPU-0")):
        assert "DEVICELENS_PROMETHEUS: " in refusal(*command, **PROMETHEUS)


@pytest.mark.parametrize(
    "selector",
    [
        *("{}", "cluster", "cluster=a", '{cluster="a"', 'cluster="a"}', '1a="b"', 'a=="b"', 'a="b" b="c"'),
        *('a="b"} or up{x="y"', 'a="b"} or vector(1) #', 'a="b\n"', '__name__="up"', 'a="b",,c="d"', ","),
        *('a="' + "x" * 5000 + '"', '"my.label"="x"', "a=`b`", '{{a="b"}}', 'a="\\"', "a='b\"'x"),
    ],
)
def test_only_matchers_become_part_of_a_query(selector: str) -> None:
    assert "expected matchers such as" in refusal(*FLEET, "--selector", selector)
