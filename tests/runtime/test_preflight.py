"""The words of a preflight report: states of paths, limits, and hints."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

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


def report(need: Need, found: PathState, limits: ProcessLimits = WELL) -> PreflightReport:
    return assess([(need, found)], limits)


def hint_of(need: Need, found: PathState, limits: ProcessLimits = WELL) -> str:
    made = report(need, found, limits)
    if not made.lacking:
        return ""
    assert made.lacking == (need.name,)
    (hint,) = made.hints
    return hint.removeprefix(f"{need.name}: ")


def test_a_process_that_reaches_all_has_one_line_without_hints() -> None:
    made = assess([(SOCKET, PathState(owner=0)), (DIRECTORY, PathState(owner=0, free=1 << 30))], WELL)
    assert made.log_fields() == {
        "pod_resources": "served",
        "device_plugins": "writable",
        "inotify": "128 instances and 1000 watches allowed",
        "descriptors": 1 << 20,
        "memory_limit": "none",
        "uid": 0,
    }


def test_the_line_begins_with_what_is_lacking_and_ends_with_hints() -> None:
    made = assess([(SOCKET, PathState(errno.ENOENT)), (DIRECTORY, PathState(errno.EROFS))], WELL)
    fields = made.log_fields()
    assert next(iter(fields.items())) == ("lacking", "pod_resources,device_plugins")
    assert list(fields.items())[-1] == (
        "hints",
        (
            "pod_resources: is the kubelet up?; "
            "device_plugins: mount /var/lib/kubelet/device-plugins without readOnly"
        ),
    )


OTHER = replace(WELL, uid=65532)
CONFINED = replace(WELL, label=SELINUX, enforcing=True)
HISTORY = Need("history", Path("/var/lib/devicelens"), Use.WRITE, "mount it", made=True)
OPTIONAL = replace(SOCKET, optional=True)
MODE = "its mode, or that of a directory above it, does not let this user in"
SECURE = "SELinux keeps container_t from it: seLinuxOptions {type: spc_t} (docs/openshift.md)"
AS_OWNER = "run as that user"
RUN_AS = "it belongs to {}: run as that user (runAsUser: {}), not as uid 65532"


MOUNT = f"mount the directory {PATH.parent}"
NO_SOCKET = f"it is no socket: mount the node's directory {PATH.parent}, and remove this from it"
STARTING = "the kubelet has ended or is just starting: nothing to do if it comes back"
NO_DIRECTORY = PathState(errno.ENOENT, directory=False)


@pytest.mark.parametrize(
    ("need", "found", "state", "hint"),
    [
        (SOCKET, PathState(errno.ENOENT), "absent", "is the kubelet up?"),
        (
            SOCKET,
            NO_DIRECTORY,
            "absent, and so is its directory",
            f"{MOUNT} of the node, or say --kubelet.root",
        ),
        (SOCKET, PathState(errno.ECONNREFUSED), "present, no process serves it", STARTING),
        (
            SOCKET,
            PathState(mounted=True),
            "served, but mounted as a file",
            f"{MOUNT}: the kubelet replaces the socket when it restarts",
        ),
        (SOCKET, PathState(errno.ENOTSOCK), "no socket", NO_SOCKET),
        (SOCKET, PathState(errno.ENAMETOOLONG), "file name too long", f"see what is at {PATH}"),
        # An optional path may be absent or not served, and may not be refused.
        (OPTIONAL, PathState(errno.ENOENT), "absent", ""),
        (OPTIONAL, PathState(errno.ECONNREFUSED), "present, no process serves it", ""),
        (OPTIONAL, NO_DIRECTORY, "absent, and so is its directory", ""),
        (OPTIONAL, PathState(errno.EACCES, owner=0), "no permission", MODE),
        # A full disk shows before a write fails.
        (HISTORY, PathState(free=LEAST_FREE), "writable", ""),
        (HISTORY, PathState(free=5 << 20), "writable, 5MiB free", f"make room on the disk of {HISTORY.path}"),
    ],
)
def test_a_path_has_its_state_and_a_hint(need: Need, found: PathState, state: str, hint: str) -> None:
    assert report(need, found).fields[need.name] == state
    assert hint_of(need, found) == hint


@pytest.mark.parametrize(
    ("owner", "limits", "hint"),
    [
        # File permissions come first, security modules after them.
        (0, OTHER, RUN_AS.format("root", 0)),
        (7, OTHER, RUN_AS.format("uid 7", 7)),
        (0, replace(OTHER, label=SELINUX), RUN_AS.format("root", 0)),
        (0, CONFINED, SECURE),
        (0, replace(CONFINED, enforcing=None), SECURE),
        (0, replace(CONFINED, enforcing=False), MODE),
        (0, replace(CONFINED, label="a:b:spc_t:s0"), MODE),
        (0, replace(WELL, label="unconfined"), MODE),
        (0, replace(WELL, label="x.d (enforce)"), "the AppArmor profile x.d may deny access to it"),
        (
            1000,
            WELL,
            "it belongs to uid 1000, and root without capabilities is a user as others: " + AS_OWNER,
        ),
        (1000, replace(WELL, capabilities=1 << 1), MODE),
    ],
)
def test_a_refused_path_has_a_hint_at_what_refuses_it(owner: int, limits: ProcessLimits, hint: str) -> None:
    for code in (errno.EACCES, errno.EPERM):
        found = PathState(code, owner=owner)
        assert report(SOCKET, found, limits).fields["pod_resources"] == "no permission"
        assert hint_of(SOCKET, found, limits) == hint


def test_low_limits_have_hints() -> None:
    low = replace(WELL, descriptors=256, memory=LEAST_MEMORY - 1, inotify_error=errno.EMFILE)
    made = assess([], low)
    assert made.lacking == ("inotify", "descriptors", "memory_limit")
    assert "fs.inotify.max_user_instances" in made.hints[0]
    assert made.fields["memory_limit"] == "96MiB"
    assert assess([], replace(low, descriptors=1024, memory=LEAST_MEMORY, inotify_error=0)).lacking == ()
    assert assess([], ProcessLimits(uid=0)).fields["inotify"] == "not available"


@settings(max_examples=40)
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
def test_any_state_is_one_line_and_has_one_hint_if_it_is_lacking(
    need: Need, found: PathState, limits: ProcessLimits
) -> None:
    made = report(need, found, limits)
    assert len(made.lacking) == len(made.hints)
    assert all(hint.strip() for hint in made.hints)
    text = " ".join([*map(str, made.fields.values()), *made.hints])
    assert "\n" not in text
    assert "\x1b" not in text
    if found.error not in {0, errno.ENOENT, errno.ECONNREFUSED} or (found.mounted and not found.error):
        assert made.lacking == ("x",)
    if found.error == errno.ENOENT:
        assert made.lacking == (() if need.optional else ("x",))
    assert os.strerror(found.error).lower() in text or found.error not in {errno.ELOOP, errno.EIO}
