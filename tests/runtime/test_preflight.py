"""What is said about what was found: the words, what is lacking, and what to do."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.preflight import (
    LEAST_FREE,
    LEAST_MEMORY,
    Need,
    PathState,
    PreflightReport,
    ProcessLimits,
    Use,
    assess,
)

PATH = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
SOCKET = Need("pod_resources", PATH, Use.CONNECT, "is the kubelet up?")
DIRECTORY = Need("device_plugins", Path("/var/lib/kubelet/device-plugins"), Use.WRITE, "mount it")
WELL = ProcessLimits(uid=0, descriptors=1 << 20, instances=128, watches=1000)
SELINUX = "system_u:system_r:container_t:s0:c1,c2"


def said(need: Need, found: PathState, limits: ProcessLimits = WELL) -> PreflightReport:
    return assess([(need, found)], limits)


def hint_of(need: Need, found: PathState, limits: ProcessLimits = WELL) -> str:
    reach = said(need, found, limits)
    assert reach.lacking == (need.name,)
    (hint,) = reach.hints
    name, _, text = hint.partition(": ")
    assert name == need.name
    return text


def test_where_all_is_well_one_line_says_so_and_asks_for_nothing() -> None:
    reach = assess([(SOCKET, PathState(owner=0)), (DIRECTORY, PathState(owner=0, free=1 << 30))], WELL)
    assert reach.log_fields() == {
        "pod_resources": "served",
        "device_plugins": "writable",
        "inotify": "128 instances and 1000 watches allowed",
        "descriptors": 1 << 20,
        "memory_limit": "none",
        "uid": 0,
    }


def test_what_is_lacking_comes_first_and_what_to_do_last() -> None:
    fields = assess(
        [(SOCKET, PathState(errno.ENOENT)), (DIRECTORY, PathState(errno.EROFS))], WELL
    ).log_fields()
    assert next(iter(fields)) == "lacking"
    assert fields["lacking"] == "pod_resources,device_plugins"
    assert list(fields)[-1] == "hints"
    assert fields["hints"] == (
        "pod_resources: is the kubelet up?; "
        "device_plugins: mount /var/lib/kubelet/device-plugins without readOnly"
    )


@pytest.mark.parametrize(
    ("found", "state", "hint"),
    [
        (PathState(errno.ENOENT), "absent", "is the kubelet up?"),
        (
            PathState(errno.ENOENT, directory=False),
            "absent, and so is its directory",
            "mount the directory /var/lib/kubelet/pod-resources of the node, or say --kubelet.root",
        ),
        (
            PathState(errno.ECONNREFUSED),
            "present, nobody serves it",
            "the kubelet has ended or is just starting: nothing to do if it comes back",
        ),
        (
            PathState(mounted=True),
            "served, but mounted as a file",
            (
                "mount the directory /var/lib/kubelet/pod-resources: the kubelet replaces the socket when it "
                "restarts"
            ),
        ),
        (
            PathState(errno.ENOTSOCK),
            "no socket",
            f"it is no socket: mount the node's directory {PATH.parent}, and remove this from it",
        ),
        (PathState(errno.ENAMETOOLONG), "file name too long", f"see what is at {PATH}"),
    ],
)
def test_a_socket_is_told_by_why_it_cannot_be_used(found: PathState, state: str, hint: str) -> None:
    assert said(SOCKET, found).fields["pod_resources"] == state
    assert hint_of(SOCKET, found) == hint


def test_what_is_optional_may_be_absent_and_may_not_be_refused() -> None:
    need = replace(SOCKET, optional=True)
    assert said(need, PathState(errno.ENOENT)).lacking == ()
    assert said(need, PathState(errno.ENOENT, directory=False)).lacking == ()
    assert said(need, PathState(errno.EACCES, owner=0)).lacking == ("pod_resources",)


def test_another_user_is_told_whose_it_is() -> None:
    limits = replace(WELL, uid=65532)
    assert hint_of(SOCKET, PathState(errno.EACCES, owner=0), limits) == (
        "it belongs to root: run as that user (runAsUser: 0), not as uid 65532"
    )
    assert hint_of(SOCKET, PathState(errno.EACCES, owner=7), limits) == (
        "it belongs to uid 7: run as that user (runAsUser: 7), not as uid 65532"
    )
    # Whoever is no root and is refused for a plain reason is told that, whatever SELinux would say.
    assert "runAsUser" in hint_of(SOCKET, PathState(errno.EACCES, owner=0), replace(limits, label=SELINUX))


@pytest.mark.parametrize("enforcing", [True, None])
def test_selinux_is_named_where_root_is_refused_what_is_roots(enforcing: bool | None) -> None:
    limits = replace(WELL, label=SELINUX, enforcing=enforcing)
    assert hint_of(SOCKET, PathState(errno.EACCES, owner=0), limits) == (
        "SELinux keeps container_t from it: seLinuxOptions {type: spc_t} (docs/openshift.md)"
    )


@pytest.mark.parametrize(
    ("label", "enforcing"),
    [(SELINUX, False), (SELINUX.replace("container_t", "spc_t"), True), ("", None), ("unconfined", None)],
)
def test_selinux_is_not_blamed_where_it_does_not_keep_anybody_out(label: str, enforcing: bool | None) -> None:
    limits = replace(WELL, label=label, enforcing=enforcing)
    assert hint_of(SOCKET, PathState(errno.EACCES, owner=0), limits) == (
        "its mode, or that of a directory above it, does not let this user in"
    )


def test_apparmor_is_named_with_its_profile() -> None:
    limits = replace(WELL, label="cri-containerd.apparmor.d (enforce)")
    assert "cri-containerd.apparmor.d" in hint_of(SOCKET, PathState(errno.EPERM, owner=0), limits)


def test_root_without_capabilities_is_told_that_others_files_are_not_its_own() -> None:
    assert hint_of(SOCKET, PathState(errno.EACCES, owner=1000)).startswith("it belongs to uid 1000")
    able = replace(WELL, capabilities=1 << 1)
    assert hint_of(SOCKET, PathState(errno.EACCES, owner=1000), able).startswith("its mode")


def test_a_full_disk_is_told_before_it_fails() -> None:
    need = Need("history", Path("/var/lib/devicelens"), Use.WRITE, "mount it", made=True)
    assert said(need, PathState(free=LEAST_FREE)).lacking == ()
    assert said(need, PathState(free=5 << 20)).fields["history"] == "writable, 5MiB free"
    assert hint_of(need, PathState(free=LEAST_FREE - 1)) == "make room on the disk of /var/lib/devicelens"


def test_limits_that_are_too_low_are_told() -> None:
    low = replace(WELL, descriptors=256, memory=LEAST_MEMORY - 1, inotify_error=errno.EMFILE)
    reach = assess([], low)
    assert reach.lacking == ("inotify", "descriptors", "memory_limit")
    assert "fs.inotify.max_user_instances" in reach.hints[0]
    assert reach.fields["memory_limit"] == "96MiB"
    assert assess([], replace(low, descriptors=1024, memory=LEAST_MEMORY, inotify_error=0)).lacking == ()
    assert assess([], ProcessLimits(uid=0)).fields["inotify"] == "not available"


@given(
    need=st.builds(
        Need,
        name=st.just("x"),
        path=st.text(st.characters(exclude_characters="\0"), min_size=1).map(Path),
        use=st.sampled_from(Use),
        missing=st.just("do this"),
        optional=st.booleans(),
    ),
    found=st.builds(
        PathState,
        error=st.sampled_from([0, *errno.errorcode]),
        directory=st.booleans(),
        mounted=st.booleans(),
        owner=st.none() | st.integers(0, 1 << 32),
        free=st.none() | st.integers(0, 1 << 62),
    ),
    limits=st.builds(
        ProcessLimits,
        uid=st.integers(0, 1 << 32),
        capabilities=st.integers(0, 1 << 41),
        label=st.text(max_size=300),
        enforcing=st.none() | st.booleans(),
    ),
)
def test_whatever_is_found_is_one_line_and_what_is_lacking_has_one_hint(
    need: Need, found: PathState, limits: ProcessLimits
) -> None:
    reach = said(need, found, limits)
    assert len(reach.lacking) == len(reach.hints)
    assert all(hint.strip() for hint in reach.hints)
    text = " ".join([*map(str, reach.fields.values()), *reach.hints])
    assert "\n" not in text
    assert "\x1b" not in text
    if found.error not in {0, errno.ENOENT} or (found.mounted and not found.error):
        assert reach.lacking == ("x",)
    if found.error == errno.ENOENT:
        assert reach.lacking == (() if need.optional else ("x",))
    assert os.strerror(found.error).lower() in text or found.error not in {errno.ELOOP, errno.EIO}
