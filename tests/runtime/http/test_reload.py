"""The access policy follows the files of the web configuration, and a reload never weakens it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.certificates import Certificates, hashed
from harness.waiting import until
from runtime.http.access import AccessPolicy
from runtime.http.web_config import WebConfigReloader, WebFiles, read_files
from runtime.process import Fatal

ALICE = f"basic_auth_users: {{alice: {hashed('a')}}}"
BOB = f"basic_auth_users: {{bob: {hashed('b')}}}"

ANYBODY = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}
CLIENTS = ANYBODY | {"client_allowed_sans": "[prometheus]"}
WEAKER = {"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "ca.crt"}


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "web")


@asynccontextmanager
async def running(file: Path, *, interval: float = 0.01) -> AsyncGenerator[WebConfigReloader]:
    """The reloader of `file`, started and running."""
    reloader = WebConfigReloader(file, interval=interval, settle=0.005)
    await reloader.start()
    task = asyncio.create_task(reloader.run())
    try:
        yield reloader
    finally:
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError), outcome


async def eventually(what: str, condition: Callable[[], object]) -> None:
    async def probe() -> bool:
        return bool(condition())

    await until(what, probe, pause=0.005)


async def refused(reloader: WebConfigReloader, reason: str) -> None:
    await eventually(f"refused: {reason}", lambda: reason in reloader.problem)


@pytest.mark.parametrize("text", ["tls_server_config: {}", "", "basic_auth_users: {a: b}", None])
async def test_a_file_that_cannot_be_used_ends_the_process_at_its_start(
    text: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "web.yaml"
    if text is not None:
        file.write_text(text)
    reason = "cannot be read: No such file or directory" if text is None else ""
    line = "" if text is None else "1:"
    with pytest.raises(Fatal, match=rf"^--web\.config\.file: {file}:{line} {reason}"):
        await WebConfigReloader(file, settle=0.001).start()


async def test_a_certificate_whose_key_comes_later_is_waited_for(made: Certificates) -> None:
    certificate, key = made.pair()
    made.path("tls.crt").write_bytes(certificate)
    reloader = WebConfigReloader(made.configuration(), settle=0.05)
    beginning = asyncio.create_task(reloader.start())
    await asyncio.sleep(0)
    made.path("tls.key").write_bytes(key)
    await beginning
    assert reloader.policy.tls is not None


async def test_only_what_changes_is_replaced(made: Certificates, tmp_path: Path) -> None:
    reloader = WebConfigReloader(made.configuration(ALICE, **ANYBODY), settle=0.001)
    await reloader.start()
    first = reloader.policy
    made.path("tls.crt").write_bytes(made.path("tls.crt").read_bytes())
    made.configuration(ALICE, **ANYBODY)
    await reloader.reload()
    assert reloader.policy is first
    other = Certificates(tmp_path / "other").authority
    for change in (made.renew, lambda: other.cert_pem.write_to_path(str(made.path("ca.crt")))):
        before = reloader.policy
        change()
        await reloader.reload()
        assert reloader.policy.tls is not before.tls
        assert reloader.policy.users is before.users  # with the passwords that are verified
    made.configuration(BOB, **ANYBODY)
    await reloader.reload()
    assert reloader.policy.users is not first.users


async def test_a_changed_file_is_read_on_request_before_its_interval(made: Certificates) -> None:
    async with running(made.configuration(), interval=3600) as reloader:
        before = reloader.policy.tls
        made.renew()
        reloader.ask()
        await eventually("another context", lambda: reloader.policy.tls is not before)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        (
            "web.yaml",
            b"basic_auth_users: {alice: plain}",
            "found something else, expected a bcrypt hash",
        ),
        ("web.yaml", b"basic_auth_users: [", "not YAML"),
        ("web.yaml", b"\x00", "found character U+0000"),
        ("web.yaml", None, "No such file"),
        ("tls.crt", None, "No such file"),
        ("tls.key", None, "No such file"),
        ("tls.crt", b"another", "is not the key of the certificate"),
    ],
)
async def test_a_file_that_cannot_be_used_leaves_the_previous_policy_and_is_logged_once(
    file: str, content: bytes | None, reason: str, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running(made.configuration(ALICE)) as reloader:
        before = reloader.policy
        kept = made.path(file).read_bytes()
        if content is None:
            made.path(file).unlink()
        else:
            made.path(file).write_bytes(made.pair()[0] if content == b"another" else content)
        await refused(reloader, reason)
        for _ in range(2):
            await reloader.reload()
        assert reloader.policy is before
        made.path(file).write_bytes(kept.replace(b"alice", b"carol"))
        await eventually("the end", lambda: not reloader.problem)
        assert (reloader.policy is before) is (file != "web.yaml")
    # A read amid the write may be refused for another reason, which is logged too.
    events = [record.message for record in caplog.records if record.name == "devicelens.protection"]
    assert [event for event in dict.fromkeys(events) if event != "web configuration read"] == [
        "web configuration refused, the last one stays in force",
        "web configuration refused, the last one stays in force: over",
    ]


async def test_a_half_written_file_is_not_used(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a file may be a good file too: two reads must be the same."""
    file = made.configuration(ALICE)
    lines = file.read_text().replace("alice", "carol").splitlines(keepends=True)
    reloader = WebConfigReloader(file, settle=0.001)
    await reloader.start()
    before, in_force = reloader.policy, list[AccessPolicy]()

    def read_with_one_more_line(path: Path) -> WebFiles:
        in_force.append(reloader.policy)
        file.write_text("".join(lines[: len(in_force)]))
        return read_files(path)

    monkeypatch.setattr("runtime.http.web_config.read_files", read_with_one_more_line)
    await reloader.reload()
    assert in_force == [before] * (len(lines) + 1)
    assert reloader.policy is not before
    assert reloader.policy.users is not None
    assert reloader.policy.tls is not None


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ((ALICE, CLIENTS), ("", CLIENTS), "it requires no password any more"),
        ((ALICE, CLIENTS), (ALICE, None), "it switches TLS off"),
        ((ALICE, CLIENTS), (ALICE, WEAKER), "it requires less of clients' certificates"),
        ((ALICE, CLIENTS), (ALICE, ANYBODY), "it admits clients' certificates with any name"),
        ((ALICE, None), (ALICE, {}), "it switches TLS on"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_running_process_does_not_change_its_protection(
    before: tuple[str, dict[str, str] | None],
    after: tuple[str, dict[str, str] | None],
    lost: str,
    made: Certificates,
) -> None:
    def write(text: str, tls: dict[str, str] | None) -> Path:
        file = made.configuration(text, **(tls or {}))
        if tls is None:
            file.write_text(text)
        return file

    file = write(*before)
    reloader = WebConfigReloader(file, settle=0.001)
    await reloader.start()
    policy = reloader.policy
    write(*after)
    await reloader.reload()
    assert f"{lost}, which a running process does not do" in reloader.problem
    assert reloader.policy is policy
    # Another process begins with what the file says.
    await WebConfigReloader(file, settle=0.001).start()
