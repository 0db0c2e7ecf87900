"""exporter.mapping.device_ids: which physical device is behind an id, by the forms that plugins use."""

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
    IdRuleError,
    read_id,
    rule,
)

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
        # Others' ids are whole devices, however near they come to a form.
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
def test_an_id_reads_as_its_plugin_meant_it(device: str, reading: IdReading) -> None:
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
def test_a_monstrous_id_is_read_in_no_time(device: str) -> None:
    began = time.thread_time()
    IdReader()(device)
    assert time.thread_time() - began < 1


def test_what_is_remembered_of_ids_is_bounded_in_number_and_length() -> None:
    reader = IdReader()
    short, long = f"{UUID}::0", "a" * 1000 + "::0"
    assert reader(short) is reader(short)
    assert reader(long) == reader(long) == share("replica", "a" * 1000, "0")
    assert reader(long) is not reader(long)
    tracemalloc.start()
    try:
        for n in range(40_000):
            reader(f"{'x' * 120}{n}")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 16 * 1024 * 1024


def test_a_rule_of_ones_own_comes_before_those_after_it() -> None:
    reader = IdReader([rule("mine", r"(?P<parent>card\d+)-(?P<replica>\d+)"), *BUILT_IN_RULES])
    assert reader("card0-3") == share("mine", "card0", "3")
    assert reader(f"{UUID}::0") == share("replica", UUID, "0")
    assert read_id("card0-3") == WHOLE


def test_a_group_that_did_not_take_part_is_empty() -> None:
    reader = IdReader([rule("loose", r"(?:(?P<parent>a)|b)(?P<replica>\d)?")])
    assert reader("b") == IdReading("loose", kind=DeviceKind.REPLICA)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(?P<parent>", "is not a regular expression: "),
        (r"(?P<replica>\d+)", r"has no group (?P<parent>…)"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(IdRuleError, match="id rule mine: ") as caught:
        rule("mine", pattern)
    assert message in str(caught.value)
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize(
    ("resource", "device", "reading"),
    [
        ("gpu.intel.com/i915", "card0-3", share("intel-gpu-share", "card0", "3")),
        ("gpu.intel.com/xe", "card12-0", share("intel-gpu-share", "card12", "0")),
        ("dsa.intel.com/wq-user-shared", "wq1.0-7", share("intel-wq-share", "wq1.0", "7")),
        ("iaa.intel.com/wq-user-dedicated", "wq3.1-0", share("intel-wq-share", "wq3.1", "0")),
        ("sgx.intel.com/enclave", "sgx-enclave-11", share("intel-sgx-share", "sgx-enclave", "11")),
        ("sgx.intel.com/provision", "sgx-provision-2", share("intel-sgx-share", "sgx-provision", "2")),
        # The same ids of anybody else are names like any other.
        ("example.com/gpu", "card0-3", WHOLE),
        ("evil.com/gpu.intel.com/i915", "card0-3", WHOLE),
        ("gpu.intel.com/i915\n", "card0-3", WHOLE),
        ("gpu.intel.com/i915", "wq1.0-7", WHOLE),
        ("dsa.intel.com/epc", "wq1.0-7", WHOLE),
        ("", "sgx-enclave-11", WHOLE),
        # What is of no resource in particular is of these too.
        ("gpu.intel.com/i915", "card0-3::1", share("replica", "card0-3", "1")),
    ],
)
def test_a_form_of_one_plugin_is_looked_for_in_its_resources_alone(
    resource: str, device: str, reading: IdReading
) -> None:
    assert read_id(device, resource) == reading


def test_resources_of_the_same_rules_share_what_is_remembered() -> None:
    reader = IdReader()
    assert reader(f"{UUID}::0", "example.com/a") is reader(f"{UUID}::0", "example.com/b")
    assert reader("card0-1", "gpu.intel.com/xe") != reader("card0-1", "example.com/a")


def test_the_parent_is_a_template_of_what_the_groups_matched() -> None:
    mine = rule(
        "mine", r"(?P<a>\w+)/(?P<b>\w+)(?:/(?P<c>x))?", parent="<{b}|{a}|{c}>", kind=DeviceKind.PARTITION
    )
    assert IdReader([mine])("one/two") == part("mine", "<two|one|>")


def test_what_a_rule_calls_whole_has_no_parent() -> None:
    reader = IdReader([rule("address", r"[0-9a-f:]+", parent="", kind=DeviceKind.WHOLE), *BUILT_IN_RULES])
    assert reader("fe80::1") == IdReading("address")
    assert reader(f"{UUID}::1").kind is DeviceKind.REPLICA


@pytest.mark.parametrize("parent", ["{parent", "}{parent}", "{{parent}}", "{parent!r}", "{0}"])
def test_a_template_of_anything_but_groups_is_refused(parent: str) -> None:
    with pytest.raises(IdRuleError, match="expected text and groups of the pattern") as caught:
        rule("mine", r"(?P<parent>x)", parent=parent)
    assert caught.value.key == "parent"
