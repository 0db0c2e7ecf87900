"""runtime.flags: durations, addresses, and flags with their environment variables."""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.flags import (
    DURATION,
    ListenAddress,
    ProcessSettings,
    default_node_name,
    listen_address_setting,
    parse_address,
    parse_listen_address,
    setting,
    settings_command,
    variable,
)
from runtime.text import parse_duration, parse_size

_SECONDS = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}


_DURATIONS = {"0": 0, "0s": 0, "5s": 5, " 5s\n": 5, "250ms": 0.25, "1.5s": 1.5, "1w2d3h4m5s6ms": 788645.006}
_SIZES = {
    "0": 0,
    "10B": 10,
    "3KiB": 3072,
    "1048576": 1 << 20,
    "64MiB": 64 << 20,
    "64MB": 64 << 20,
    " 1GiB ": 1 << 30,
}


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [(parse_duration, *pair) for pair in _DURATIONS.items()]
    + [(parse_size, *pair) for pair in (*_SIZES.items(), ("2TB", 2 << 40))],
)
def test_a_duration_is_in_seconds_and_a_size_in_powers_of_1024(
    parse: Callable[[str], float], text: str, value: float
) -> None:
    assert parse(text) == pytest.approx(value)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(list(_SECONDS)), min_size=1, unique=True), st.data())
def test_a_duration_is_the_sum_of_its_parts(units: list[str], data: st.DataObject) -> None:
    units.sort(key=lambda unit: -_SECONDS[unit])
    numbers = [data.draw(st.integers(0, 10_000)) for _ in units]
    text = "".join(f"{number}{unit}" for number, unit in zip(numbers, units, strict=True))
    expected = sum(number * _SECONDS[unit] for number, unit in zip(numbers, units, strict=True))
    assert parse_duration(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":10190", ListenAddress(port=10190)),
        (":0", ListenAddress(port=0)),
        ("127.0.0.1:80", ListenAddress("127.0.0.1", 80)),
        ("localhost:65535", ListenAddress("localhost", 65535)),
        ("[::1]:9", ListenAddress("::1", 9)),
        ("[::]:9", ListenAddress("::", 9)),
        ("[fe80::1%eth0]:9", ListenAddress("fe80::1%eth0", 9)),
        ("unix:/run/x.sock", ListenAddress(path=Path("/run/x.sock"))),
        ("unix:x.sock", ListenAddress(path=Path("x.sock"))),
    ],
)
def test_listen_addresses_are_parsed_and_written_alike(text: str, address: ListenAddress) -> None:
    assert parse_listen_address(text) == address
    assert str(address) == text


_NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
_ADDRESSES = st.builds(
    ListenAddress,
    host=st.none() | _NAMES | st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str),
    port=st.integers(0, 65535),
    path=st.none(),
) | st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1).map(
    lambda text: ListenAddress(path=Path(text))
)


@settings(max_examples=50)
@given(_ADDRESSES)
def test_every_address_comes_back_from_its_text(address: ListenAddress) -> None:
    assert parse_listen_address(str(address)) == address


def _texts(alphabet: str) -> st.SearchStrategy[str]:
    return st.text(max_size=12) | st.text(alphabet, max_size=20)


@settings(max_examples=60)
@given(_texts("0123456789.smhdw -"), _texts("[]:/.unix0a%"))
def test_any_text_is_parsed_or_refused(duration: str, address: str) -> None:
    with suppress(ValueError):
        seconds = parse_duration(duration)
        assert math.isfinite(seconds)
        assert seconds >= 0
    with suppress(ValueError):
        parsed = parse_listen_address(address)
        assert parse_listen_address(str(parsed)) == parsed


_EXPECTED: dict[Callable[[str], object], str] = {
    parse_duration: "expected a duration such as 250ms, 5s, 1h30m or 30d",
    parse_size: "expected a size such as",
    parse_listen_address: "expected ",
    parse_address: "",
}


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *(
            (parse_duration, text)
            for text in ("", " ", "5", "s", "5 s", "-5s", "+5s", "5S", "5sec", "1h 30m")
        ),
        *((parse_duration, text) for text in ("5s!", "1e3s", ".5s", "5.s", "inf", "nan", "00", "5s\x00")),
        *((parse_duration, text) for text in ("\u0665s", "9" * 400 + "s", "5y", "5s5s", "1m1h", "1ms1s")),
        *(
            (parse_size, text)
            for text in ("", "1.5GiB", "-1", "64 MiB", "64mib", "MiB", "9" * 16, "1PiB", "٣")
        ),
        *((parse_listen_address, text) for text in ("", ":", "10190", "localhost", "localhost:", ":65536")),
        *((parse_listen_address, text) for text in (":-1", ":+1", ":1e3", ":٣", ": 80", ":80 ", "unix:")),
        *((parse_listen_address, text) for text in ("http://localhost:80", "a b:80", "[::1:80", "::1]:80")),
        *((parse_listen_address, text) for text in ("::1:80", "[]:80", "[::1]80", "[::1]x:80", "host\n:80")),
        *((parse_listen_address, text) for text in (":" + "9" * 5000, "tcp:localhost:80")),
        *(
            (parse_address, text)
            for text in ("", "node:10190", "ftp://node", "http://", "http://:1", "unix:")
        ),
        *((parse_address, text) for text in ("http://node:port", "http://node:99999", "http://node/?q=1")),
        *(
            (parse_address, text)
            for text in ("http://node/#x", "http://no de", "http://node/a b", "http://[::1")
        ),
        *((parse_address, text) for text in ("unix:" + "x" * 108, "unix:a\0b", "http://node/\x1b[2J")),
    ],
)
def test_a_malformed_value_is_refused_with_what_was_found(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"^found ") as caught:
        parse(text)
    assert _EXPECTED[parse] in str(caught.value)


def test_a_flag_has_the_variable_of_its_name() -> None:
    assert variable("--web.listen-address") == "DEVICELENS_WEB_LISTEN_ADDRESS"
    assert variable("--poll.interval") == "DEVICELENS_POLL_INTERVAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings(ProcessSettings):
    web_listen_address: ListenAddress = listen_address_setting(":10190")
    poll_interval: float = setting("--poll.interval", type=DURATION, default="5s", help="How often.")


@settings_command(_Settings)
def _show(settings: _Settings) -> None:
    for name in sorted(field.name for field in fields(settings)):
        click.echo(f"{name}={getattr(settings, name)}")


def _values(*arguments: str, **environment: str | None) -> dict[str, str]:
    cleared: dict[str, str | None] = {"NODE_NAME": None, "DEVICELENS_NODE_NAME": None}
    result = CliRunner().invoke(_show, arguments, env=cleared | environment)
    assert result.exit_code == 0, result.output
    return dict(line.split("=", 1) for line in result.output.splitlines())


def _refusal(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(_show, arguments, env=environment)
    assert result.exit_code == 2, result.output
    return result.output


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    assert _values(DEVICELENS_POLL_INTERVAL="250ms")["poll_interval"] == "0.25"
    assert _values("--poll.interval", "1m", DEVICELENS_POLL_INTERVAL="250ms")["poll_interval"] == "60.0"
    assert _values(DEVICELENS_WEB_LISTEN_ADDRESS="unix:/x")["web_listen_address"] == "unix:/x"
    assert _values(DEVICELENS_KUBELET_ROOT="/elsewhere")["kubelet_root"] == "/elsewhere"


def test_the_nodes_name_is_the_flags_then_its_variables_then_node_names_then_the_hosts() -> None:
    everything = {"DEVICELENS_NODE_NAME": "b", "NODE_NAME": "c"}
    assert _values("--node-name", "a", **everything)["node_name"] == "a"
    assert _values(**everything)["node_name"] == "b"
    assert _values(NODE_NAME="c")["node_name"] == "c"
    assert _values(DEVICELENS_NODE_NAME="", NODE_NAME="c")["node_name"] == "c"
    assert _values()["node_name"] == default_node_name()


def test_the_hosts_name_is_lower_case_as_the_kubelet_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Node-7.Example")
    assert default_node_name() == "node-7.example"


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "\udcff", "x" * 254])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    assert "expected a node's name" in _refusal("--node-name", name)


def test_a_wrong_value_is_named_with_its_flag_or_variable_what_was_found_and_expected() -> None:
    by_flag = _refusal("--poll.interval", "soon")
    assert "--poll.interval" in by_flag
    assert "found 'soon', expected a duration" in by_flag
    by_variable = _refusal(DEVICELENS_POLL_INTERVAL="soon")
    assert "DEVICELENS_POLL_INTERVAL" in by_variable
    assert "found 'soon', expected a duration" in by_variable
    assert "'loud' is not one of" in _refusal("--log.level", "loud")


def test_help_shows_every_flag_with_its_variable_and_default() -> None:
    defaults = {
        "--web.listen-address": ":10190",
        "--kubelet.root": "/var/lib/kubelet",
        "--node-name": default_node_name(),
        "--log.level": "info",
        "--log.format": "logfmt",
        "--poll.interval": "5s",
    }
    text = " ".join(CliRunner().invoke(_show, ["--help"], terminal_width=200).output.split())
    values = _values()
    for name, default in defaults.items():
        assert name in text
        assert variable(name) in text
        assert f"default: {'(the host' + chr(39) + 's name)' if name == '--node-name' else default}" in text
        field = re.sub("[.-]", "_", name.removeprefix("--"))
        assert values[field] == ("5.0" if name == "--poll.interval" else default)
    assert values["web_config_file"] == "None"
    assert "DEVICELENS_NODE_NAME, NODE_NAME" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:10190", "http://127.0.0.1:10190"),
        ("http://node", "http://node:80"),
        ("https://node/", "https://node:443"),
        ("https://node:1/behind/a/proxy/", "https://node:1/behind/a/proxy"),
        ("http://[::1]:10190", "http://[::1]:10190"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
        ("unix:x.sock", "unix:x.sock"),
    ],
)
def test_addresses_of_servers_are_parsed(text: str, shown: str) -> None:
    assert str(parse_address(text)) == shown


def test_a_password_is_sent_and_never_shown() -> None:
    address = parse_address("https://me:s%40cret@node:1")
    assert address.authorization == "Basic bWU6c0BjcmV0"
    assert "cret" not in str(address)
    assert "me" not in str(address)
