"""exporter.views.query: addresses of pages, written and read."""

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


@given(NAMES, NAMES)
@example("nvidia.com/gpu", "GPU-1::0")
@example("/a//b/", "..")
def test_a_device_s_address_reads_as_it_was_written(resource: str, device: str) -> None:
    assert read_device(device_link(resource, device)) == (resource, device)


@given(NAMES, NAMES, NAMES)
def test_pods_and_claims_addresses_read_as_they_were_written(one: str, two: str, three: str) -> None:
    assert read_pod(pod_link(one, two)) == (one, two)
    assert read_claim(claim_link(one, two, three)) == (one, two, three)


@given(NAMES, NAMES)
def test_an_address_is_printable_and_no_client_resolves_anything_in_it(namespace: str, pod: str) -> None:
    link = pod_link(namespace, pod)
    assert link.isascii()
    assert link.isprintable()
    assert not set(link) & set("\"'<>?#\\ ")
    assert all(segment.lower().replace("%2e", ".") not in {"", ".", ".."} for segment in link.split("/")[1:])
    assert URL(f"http://node{link}", encoded=True).raw_path == link
    assert URL("http://node/").join(URL(link, encoded=True)).raw_path == link


def test_what_people_usually_see_is_plain() -> None:
    assert device_link("nvidia.com/gpu", "GPU-1") == "/devices/nvidia.com/gpu/GPU-1"
    assert device_link("r/x", "MIG-GPU-1/7/0") == "/devices/r/x/MIG-GPU-1%2F7%2F0"
    assert pod_link("ml", "llama-0") == "/pods/ml/llama-0"
    assert claim_link("gpu.example.com", "node-1", "gpu-0") == "/claims/gpu.example.com/node-1/gpu-0"


@pytest.mark.parametrize("character", ["x", "<", "\u202e", "/"])
@pytest.mark.parametrize("length", [4096, 20_000])
def test_a_name_of_any_length_leads_somewhere(character: str, length: int) -> None:
    name = character * length
    for link in (device_link("r/x", name), pod_link("ns", name), claim_link("d", "p", name)):
        assert len(link) <= ADDRESS_LIMIT
        if not link.startswith("/?"):
            assert link.rpartition("/")[2].replace("%", "")
            continue
        (found,) = [value for key, value in parse_qsl(urlsplit(link).query) if key in {"device", "pod", "q"}]
        assert 0 < len(found) <= 512
    assert device_link("r/x", "x" * 4096).startswith("/devices/r/x/xxx")


def test_the_past_is_asked_with_what_is_given_alone() -> None:
    assert history_link() == "/history"
    link = history_link({"resource": "a/b", "pod": "p&q", "from": "-1h", "at": "", "limit": "5"})
    assert parse_qsl(urlsplit(link).query) == [
        ("resource", "a/b"),
        ("pod", "p&q"),
        ("from", "-1h"),
        ("limit", "5"),
    ]


@pytest.mark.parametrize(
    "path", ["/devices/", "/devices/x", "/devices/a//b", "/devices/a/%FF", "/pods/a/b", "/devicesa/b"]
)
def test_a_path_that_is_none_of_a_device_is_told(path: str) -> None:
    with pytest.raises(LinkError, match="expected"):
        read_device(path)


def test_a_path_with_too_few_or_too_many_names_is_told() -> None:
    for read, path in ((read_pod, "/pods/a"), (read_pod, "/pods/a/b/c"), (read_claim, "/claims/a/b")):
        with pytest.raises(LinkError, match="expected /"):
            read(path)
