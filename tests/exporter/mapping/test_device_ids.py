"""exporter.mapping.device_ids: built-in rules, and rules of a file."""

import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.device_ids import (
    BUILT_IN_RULES,
    WHOLE,
    DeviceKind,
    IdReader,
    IdReading,
    read_id,
)
from exporter.mapping.id_rules import load_rules
from runtime.config_file import ConfigError
from runtime.patterns import MAX_TEXT

UUID = "GPU-8dfe7ad1-9d3c-2b8e-7b1a-0c3a2f7d1e55"
MIG = "MIG-3f3bbbd2-9f0c-5c9b-9f5f-4d2f5d0f9a11"


def share(rule: str, parent: str, number: str, partition: str = "") -> IdReading:
    return IdReading(rule, parent, number, DeviceKind.REPLICA, partition)


def part(rule: str, parent: str, name: str = "") -> IdReading:
    return IdReading(rule, parent, "", DeviceKind.PARTITION, name)


@pytest.mark.parametrize(
    ("device", "reading"),
    [
        # NVIDIA's plugin: whole, shared, MIG by its own UUID, MIG shared.
        (UUID, WHOLE),
        (f"{UUID}::0", share("replica", UUID, "0")),
        (f"{UUID}::12", share("replica", UUID, "12")),
        (MIG, part("mig", "")),
        (f"{MIG}::3", share("replica", MIG, "3")),
        # The older MIG UUID names its GPU.
        (f"MIG-{UUID}/7/0", part("mig-of-gpu", UUID, "7/0")),
        (f"MIG-{UUID}/13/2::1", share("mig-of-gpu", UUID, "1", "13/2")),
        # GKE's plugin, with slashes.
        ("nvidia0", WHOLE),
        ("nvidia0/gi1", part("gke-mig", "nvidia0", "gi1")),
        ("nvidia12/gi7/vgpu3", share("gke-mig-share", "nvidia12", "3", "gi7")),
        ("nvidia0/vgpu0", share("gke-share", "nvidia0", "0")),
        # Other ids are whole devices, even if they resemble a form.
        ("0000:3b:02.0", WHOLE),
        ("card0-1", WHOLE),
        ("mlx5_0", WHOLE),
        ("", WHOLE),
        ("::0", WHOLE),
        (f"{UUID}::", WHOLE),
        (f"{UUID}::x", WHOLE),
        (f"{UUID}::-1", WHOLE),
        (f"{UUID}:0", WHOLE),
        ("nvidia/gi1", WHOLE),
        ("nvidia0/gi", WHOLE),
        ("nvidia0/gi1/", WHOLE),
        ("nvidia0/gi1/vgpu", WHOLE),
        ("xnvidia0/gi1", WHOLE),
        ("nvidia0/gi1\n", WHOLE),
        ("nvidia\u0663/gi1", WHOLE),
        (f"{UUID}::\u0663", WHOLE),
        (f"MIG-{UUID}/7", WHOLE),
        # A replica of something odd is still one of it.
        ("a::1::2", share("replica", "a::1", "2")),
        ("line\nbreak::1", share("replica", "line\nbreak", "1")),
        ("fe80::1", share("replica", "fe80", "1")),
    ],
)
def test_id_is_read_by_its_form(device: str, reading: IdReading) -> None:
    assert read_id(device) == reading


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=40) | st.text("nvidia0/gvpu:MIGPU-1", max_size=30))
def test_any_id_can_be_read_and_is_whole_or_has_a_parent_within_it(device: str) -> None:
    reading = read_id(device)
    if reading == WHOLE:
        return
    assert reading.kind is not DeviceKind.WHOLE
    if reading.rule == "mig":
        assert not reading.parent
        return
    assert reading.parent
    assert reading.parent in device
    assert reading.parent != device
    assert reading.rule in {known.name for known in BUILT_IN_RULES}
    assert reading.replica == "" or reading.replica.isdigit()


@pytest.mark.parametrize(
    "device",
    [
        "::" * 100_000,
        "a" * 200_000 + "::" + "1" * 200_000 + "x",
        "MIG-GPU-" + "a-" * 100_000,
        "::1" * 70_000 + "x",
    ],
)
def test_huge_id_is_read_quickly(device: str) -> None:
    began = time.thread_time()
    IdReader()(device)
    assert time.thread_time() - began < 1


def test_cache_is_bounded_in_number_and_length() -> None:
    reader = IdReader()
    short, long = f"{UUID}::0", "a" * 1000 + "::0"
    assert reader(short) is reader(short)
    assert reader(long) == reader(long) == share("replica", "a" * 1000, "0")
    assert reader(long) is not reader(long)
    tracemalloc.start()
    try:
        for n in range(20_000):
            reader(f"{'x' * 120}{n}")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("resource", "device", "reading"),
    [
        ("gpu.intel.com/i915", "card0-3", share("intel-gpu-share", "card0", "3")),
        ("gpu.intel.com/xe", "card12-0", share("intel-gpu-share", "card12", "0")),
        ("dsa.intel.com/wq-user-shared", "wq1.0-7", share("intel-wq-share", "wq1.0", "7")),
        ("iaa.intel.com/wq-user-dedicated", "wq3.1-0", share("intel-wq-share", "wq3.1", "0")),
        ("sgx.intel.com/enclave", "sgx-enclave-11", share("intel-sgx-share", "sgx-enclave", "11")),
        ("sgx.intel.com/provision", "sgx-provision-2", share("intel-sgx-share", "sgx-provision", "2")),
        # The same ids of other resources are whole devices.
        ("example.com/gpu", "card0-3", WHOLE),
        ("evil.com/gpu.intel.com/i915", "card0-3", WHOLE),
        ("gpu.intel.com/i915\n", "card0-3", WHOLE),
        ("gpu.intel.com/i915", "wq1.0-7", WHOLE),
        ("dsa.intel.com/epc", "wq1.0-7", WHOLE),
        ("", "sgx-enclave-11", WHOLE),
        # Rules without a resource apply to these too.
        ("gpu.intel.com/i915", "card0-3::1", share("replica", "card0-3", "1")),
    ],
)
def test_rule_of_a_resource_applies_there_only(resource: str, device: str, reading: IdReading) -> None:
    assert read_id(device, resource) == reading


FILE = r"""
version: 1
rules:
  - name: acme-share
    resource: acme\.example/accelerator.*
    pattern: (?P<board>acc\d+)-slot(?P<replica>\d+)
    parent: "/dev/{board}"
  - name: acme-tile
    pattern: (?P<parent>acc\d+)\.(?P<partition>tile\d+)
    kind: partition
  - name: path
    pattern: (?P<a>[a-z]+)/(?P<b>[a-z]+)(?:/(?P<c>x))?
    parent: "<{b}|{a}|{c}>"
    kind: partition
  - name: addresses
    pattern: fe80::[0-9a-f]+
    kind: whole
"""


@pytest.mark.parametrize(
    ("device", "reading"),
    [
        ("acc0-slot3", share("acme-share", "/dev/acc0", "3")),
        ("acc1.tile2", part("acme-tile", "acc1", "tile2")),
        # A group that takes no part is empty.
        ("one/two", part("path", "<two|one|>")),
        ("fe80::1", IdReading("addresses")),
        ("GPU-1::1", share("replica", "GPU-1", "1")),
    ],
)
def test_file_rules_precede_built_in_ones(device: str, reading: IdReading) -> None:
    reader = IdReader([*load_rules(FILE.encode(), "rules.yaml"), *BUILT_IN_RULES])
    assert reader(device, "acme.example/accelerator-x") == reading
    assert (reader(device, "other.example/x") == WHOLE) is (reading.rule == "acme-share")
    assert load_rules(b"version: 1\nrules: []\n", "rules.yaml") == ()


def test_too_long_id_is_not_matched() -> None:
    (anything,) = load_rules(
        b"version: 1\nrules:\n  - {name: any, pattern: '.+', kind: whole}\n", "rules.yaml"
    )
    assert anything.read("x" * MAX_TEXT) == IdReading("any")
    assert anything.read("x" * (MAX_TEXT + 1)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\nrules: []", "f:1: version: found 2, expected 1"),
        ("version: 1", "f:1: expected the key 'rules', which is missing"),
        (
            "version: 1\nrules:\n- {nam: x}",
            "f:3: rules[0].nam: found an unknown key 'nam', did you mean 'name'?",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: (",
            "f:4: rules[0].pattern: found '(', expected a regular expression in RE2's syntax: missing ): (",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  resource: '['",
            "f:5: rules[0].resource: found '[', expected a regular expression in RE2's syntax: missing ]: [",
        ),
        ("version: 1\nrules:\n- name: x\n  pattern: x", "rules[0].parent: 'x' has no group (?P<parent>…)"),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  parent: '{y}'",
            "f:5: rules[0].parent: 'x' has no group (?P<y>…)",
        ),
        *(
            (
                f"version: 1\nrules:\n- name: x\n  pattern: (?P<parent>x)\n  parent: '{parent}'",
                f"f:5: rules[0].parent: found '{parent}', expected text and groups of the pattern",
            )
            for parent in ("{parent", "}{parent}", "{{parent}}", "{parent!r}", "{0}")
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  parent: y\n  kind: whole",
            "f:5: rules[0].parent: found 'y', but a whole device has no parent: leave it out",
        ),
        (
            "version: 1\nrules:\n- name: x\n  pattern: x\n  kind: slice",
            "f:5: rules[0].kind: found 'slice', expected one of 'partition', 'replica', 'whole'",
        ),
        (
            "version: 1\nrules:\n- {name: x, pattern: x, kind: whole}\n- {name: x, pattern: x, kind: whole}",
            "f:4: rules[1].name: found 'x': a rule above or a built-in one has this name",
        ),
        (
            "version: 1\nrules:\n- {name: mig, pattern: x, kind: whole}",
            "a rule above or a built-in one",
        ),
    ],
)
def test_invalid_file_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_rules(text.encode(), "f")
    assert message in str(caught.value)
