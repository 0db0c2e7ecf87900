"""exporter.views.query: paths of pages, written and read."""

from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from exporter.views.query import (
    ADDRESS_LIMIT,
    LinkError,
    claim_link,
    device_link,
    history_link,
    pod_link,
    read_claim,
    read_device,
    read_pod,
)

HOSTILE = st.sampled_from(
    ["", ".", "..", "~", "~..", "%2F", "a/b", "/", "//", "?x#y", "\u202e<b>", "\x00\n", "\ud800"]
)
NAMES = HOSTILE | st.text(st.characters(), max_size=40)


@given(NAMES, NAMES, NAMES)
@example("nvidia.com/gpu", "GPU-1::0", "")
@example("/a//b/", "..", "")
def test_an_address_reads_as_it_was_written(one: str, two: str, three: str) -> None:
    assert read_device(device_link(one, two)) == (one, two)
    assert read_pod(pod_link(one, two)) == (one, two)
    assert read_claim(claim_link(one, two, three)) == (one, two, three)


@given(NAMES, NAMES)
def test_an_address_is_printable_and_clients_resolve_nothing_in_it(namespace: str, pod: str) -> None:
    link = pod_link(namespace, pod)
    assert link.isascii()
    assert link.isprintable()
    assert not set(link) & set("\"'<>?#\\ ")
    assert all(segment.lower().replace("%2e", ".") not in {"", ".", ".."} for segment in link.split("/")[1:])
    assert URL(f"http://node{link}", encoded=True).raw_path == link
    assert URL("http://node/").join(URL(link, encoded=True)).raw_path == link


def test_usual_names_are_plain_in_an_address() -> None:
    assert device_link("nvidia.com/gpu", "GPU-1") == "/devices/nvidia.com/gpu/GPU-1"
    assert device_link("r/x", "MIG-GPU-1/7/0") == "/devices/r/x/MIG-GPU-1%2F7%2F0"
    assert pod_link("ml", "llama-0") == "/pods/ml/llama-0"
    assert claim_link("gpu.example.com", "node-1", "gpu-0") == "/claims/gpu.example.com/node-1/gpu-0"


@pytest.mark.parametrize("character", ["x", "<", "\u202e", "/"])
@pytest.mark.parametrize("length", [4096, 20_000])
def test_a_name_of_any_length_has_an_address(character: str, length: int) -> None:
    name = character * length
    for link in (device_link("r/x", name), pod_link("ns", name), claim_link("d", "p", name)):
        assert len(link) <= ADDRESS_LIMIT
        if not link.startswith("/?"):
            assert link.rpartition("/")[2].replace("%", "")
            continue
        (found,) = [value for key, value in parse_qsl(urlsplit(link).query) if key in {"device", "pod", "q"}]
        assert 0 < len(found) <= 512
    assert device_link("r/x", "x" * 4096).startswith("/devices/r/x/xxx")


def test_an_address_of_history_has_the_given_parameters_alone() -> None:
    assert history_link() == "/history"
    link = history_link({"resource": "a/b", "pod": "p&q", "from": "-1h", "at": "", "limit": "5"})
    assert parse_qsl(urlsplit(link).query) == [
        ("resource", "a/b"),
        ("pod", "p&q"),
        ("from", "-1h"),
        ("limit", "5"),
    ]


@pytest.mark.parametrize(
    ("read", "path"),
    [
        *((read_device, f"/devices{rest}") for rest in ("/", "/x", "/a//b", "/a/%FF", "a/b")),
        *((read_device, "/pods/a/b"), (read_pod, "/pods/a"), (read_pod, "/pods/a/b/c")),
        (read_claim, "/claims/a/b"),
    ],
)
def test_an_invalid_path_has_the_expected_form(read: Callable[[str], object], path: str) -> None:
    with pytest.raises(LinkError, match="expected"):
        read(path)
