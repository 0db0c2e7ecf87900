"""The access policy follows the files of the web configuration, and a reload never weakens it."""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.certificates import Certificates, hashed
from harness.waiting import until
from runtime.directory import DirectoryWatcher
from runtime.http.web_config import WebConfigReloader
from runtime.process import Fatal

ALICE = f"basic_auth_users: {{alice: {hashed('a')}}}"
BOB = f"basic_auth_users: {{bob: {hashed('b')}}}"


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "web")


@asynccontextmanager
async def running(
    file: Path, *, settle: float = 0.005, inotify: bool = True
) -> AsyncGenerator[WebConfigReloader]:
    """What is in force, kept to the file."""
    reloader = WebConfigReloader(file, settle=settle)
    await reloader.start()
    watcher = DirectoryWatcher(use_inotify=inotify, poll_interval=0.01)
    tasks = [asyncio.create_task(watcher.run()), asyncio.create_task(reloader.run(watcher))]
    try:
        yield reloader
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome


async def eventually(what: str, condition: Callable[[], object]) -> None:
    async def probe() -> bool:
        return bool(condition())

    await until(what, probe, pause=0.005)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [
        (record.message, getattr(record, "devicelens_fields", {}))
        for record in caplog.records
        if record.name == "devicelens.protection"
    ]


@pytest.mark.parametrize("text", ["tls_server_config: {}", "", "basic_auth_users: {a: b}"])
async def test_a_file_that_is_broken_at_the_start_ends_the_process(text: str, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(text)
    with pytest.raises(Fatal, match=rf"^--web\.config\.file: {file}:1: "):
        await WebConfigReloader(file, settle=0.001).start()
    with pytest.raises(Fatal, match="cannot be read: No such file or directory"):
        await WebConfigReloader(tmp_path / "none.yaml", settle=0.001).start()


async def test_a_pair_that_is_under_way_at_the_start_is_waited_for(made: Certificates) -> None:
    certificate, key = made.pair()
    made.path("tls.crt").write_bytes(certificate)
    reloader = WebConfigReloader(made.configuration(), settle=0.05)
    beginning = asyncio.create_task(reloader.start())
    await asyncio.sleep(0)
    made.path("tls.key").write_bytes(key)
    await beginning
    assert reloader.policy.tls is not None


@pytest.mark.parametrize("inotify", [True, False])
async def test_new_certificates_make_a_new_context_and_users_a_new_gate(
    made: Certificates, inotify: bool
) -> None:
    async with running(made.configuration(ALICE), inotify=inotify) as reloader:
        before = reloader.policy
        made.renew()
        await eventually("another context", lambda: reloader.policy.tls is not before.tls)
        # What did not change keeps what it has learnt.
        assert reloader.policy.users is before.users
        made.configuration(BOB)
        await eventually("another gate", lambda: reloader.policy.users is not before.users)


async def test_what_does_not_change_is_not_made_anew(made: Certificates) -> None:
    async with running(made.configuration(ALICE)) as reloader:
        before = reloader.policy
        made.path("tls.crt").write_bytes(made.path("tls.crt").read_bytes())
        made.configuration(ALICE)
        reloader.ask()
        made.path("other").write_text("x")
        await asyncio.sleep(0.05)
        assert reloader.policy is before


async def test_secrets_and_config_maps_are_links_that_are_swapped(made: Certificates, tmp_path: Path) -> None:
    """As the kubelet writes them: NAME → ..data/NAME, ..data → ..TIME, renamed over."""
    volume = tmp_path / "volume"
    volume.mkdir()

    def write(version: str) -> None:
        place = volume / f"..{version}"
        place.mkdir()
        certificate, key = made.pair()
        (place / "tls.crt").write_bytes(certificate)
        (place / "tls.key").write_bytes(key)
        (volume / "..data_tmp").symlink_to(place.name)
        (volume / "..data_tmp").rename(volume / "..data")

    write("1")
    for name in ("tls.crt", "tls.key"):
        (volume / name).symlink_to(f"..data/{name}")
    file = made.configuration(cert_file=str(volume / "tls.crt"), key_file=str(volume / "tls.key"))
    async with running(file) as reloader:
        before = reloader.policy.tls
        write("2")
        await eventually("another context", lambda: reloader.policy.tls is not before)


async def test_files_in_other_places_are_followed_when_they_are_named_anew(
    made: Certificates, tmp_path: Path
) -> None:
    elsewhere = Certificates(tmp_path / "elsewhere", made.authority)
    async with running(made.configuration()) as reloader:
        first = reloader.policy.tls
        made.configuration(cert_file=str(elsewhere.path("tls.crt")), key_file=str(elsewhere.path("tls.key")))
        await eventually("another context", lambda: reloader.policy.tls is not first)
        second = reloader.policy.tls
        elsewhere.renew()
        await eventually("yet another", lambda: reloader.policy.tls is not second)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("basic_auth_users: {alice: plain}", "found something else, expected a bcrypt hash"),
        ("basic_auth_users: [", "not YAML"),
        ("\x00", "found character U+0000"),
    ],
)
async def test_a_file_that_breaks_leaves_the_last_in_force_and_is_told_once(
    broken: str, reason: str, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running(made.configuration(ALICE)) as reloader:
        before = reloader.policy
        made.configuration(broken)
        await eventually("it is refused", lambda: reason in reloader.problem)
        for _ in range(3):
            reloader.ask()
            await asyncio.sleep(0.03)
        assert reloader.policy is before
        made.configuration(BOB)
        await eventually("it is over", lambda: not reloader.problem)
        assert reloader.policy is not before
    # A read amid the write may be refused for another reason, which is logged too.
    told = list(dict.fromkeys(event for event, _ in events(caplog)))
    assert told == [
        "web configuration refused, the last one stays in force",
        "web configuration read",
        "web configuration refused, the last one stays in force: over",
    ]


@pytest.mark.parametrize("gone", ["web.yaml", "tls.crt", "tls.key"])
async def test_a_file_that_is_gone_leaves_the_last_in_force(gone: str, made: Certificates) -> None:
    async with running(made.configuration(ALICE)) as reloader:
        before = reloader.policy
        kept = made.path(gone).read_bytes()
        made.path(gone).unlink()
        await eventually("it is refused", lambda: "No such file" in reloader.problem)
        assert reloader.policy is before
        made.path(gone).write_bytes(kept)
        await eventually("it is over", lambda: not reloader.problem)


async def test_a_key_of_another_certificate_is_never_in_force(made: Certificates) -> None:
    async with running(made.configuration()) as reloader:
        before = reloader.policy
        certificate, key = made.pair()
        made.path("tls.crt").write_bytes(certificate)
        await eventually("it is refused", lambda: "is not the key of the certificate" in reloader.problem)
        assert reloader.policy is before
        made.path("tls.key").write_bytes(key)
        await eventually("it is over", lambda: not reloader.problem)
        assert reloader.policy.tls is not before.tls


async def test_what_is_half_written_is_not_believed(made: Certificates) -> None:
    """A file that is being written, and looked at for whatever reason: a part of it is a good file too."""
    file = made.configuration(ALICE)
    text = file.read_text()
    async with running(file, settle=0.3) as reloader:
        before = reloader.policy
        with file.open("w") as writing:
            for line in text.replace("alice", "carol").splitlines(keepends=True):
                writing.write(line)
                writing.flush()
                os.fsync(writing.fileno())
                reloader.ask()
                await asyncio.sleep(0.02)
                assert reloader.policy is before
        await eventually("the whole of it", lambda: reloader.policy is not before)
        assert reloader.policy.users is not None
        assert reloader.policy.tls is not None


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("users", "it requires no password any more"),
        ("tls", "it switches TLS off"),
        ("clients", "it requires less of clients' certificates"),
        ("names", "it admits clients' certificates with any name"),
    ],
)
async def test_protection_is_not_taken_away_from_a_running_process(
    text: str, lost: str, made: Certificates
) -> None:
    anybody = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}
    clients = anybody | {"client_allowed_sans": "[prometheus]"}
    file = made.configuration(ALICE, **clients)
    async with running(file) as reloader:
        before = reloader.policy
        match text:
            case "names":
                made.configuration(ALICE, **anybody)
            case "users":
                made.configuration(**clients)
            case "tls":
                file.write_text(ALICE)
            case _:
                weaker = {"client_auth_type": "VerifyClientCertIfGiven"}
                made.configuration(ALICE, **anybody | weaker)
        await eventually(
            "it is refused", lambda: f"{lost}, which a running process does not do" in reloader.problem
        )
        assert reloader.policy is before
    # Another process begins with what the file says.
    await WebConfigReloader(file, settle=0.001).start()


async def test_tls_is_not_switched_on_either(made: Certificates) -> None:
    file = made.path("web.yaml")
    file.write_text(ALICE)
    async with running(file) as reloader:
        made.configuration(ALICE)
        await eventually("it is refused", lambda: "it switches TLS on" in reloader.problem)
        assert reloader.policy.tls is None


async def test_contexts_are_replaced_never_changed(made: Certificates) -> None:
    async with running(made.configuration()) as reloader:
        old = reloader.policy.tls
        assert isinstance(old, ssl.SSLContext)
        for _ in range(3):
            before = reloader.policy.tls
            made.renew()
            await eventually("another", lambda before=before: reloader.policy.tls is not before)  # type: ignore[misc] # a default keeps the value
