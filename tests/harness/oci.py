"""Images built by buildah, and containers run by the runtime that comes with it: no daemon, no registry."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

SUITE = "trixie"


def ran(*command: str | Path, environment: Mapping[str, str] | None = None, limit: float = 900.0) -> str:
    """Its standard output. Fails with what it said where it fails."""
    told = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
        env=None if environment is None else {**os.environ, **environment},
    )
    said = f"{told.stdout[-2000:]}\n{told.stderr[-6000:]}"
    assert told.returncode == 0, f"{' '.join(map(str, command))}: {told.returncode}\n{said}"
    return told.stdout


@dataclass(frozen=True, slots=True)
class Store:
    """Images and containers below `root`, of nobody else."""

    root: Path

    def buildah(self, *arguments: str | Path) -> str:
        """One command of buildah's."""
        places = ("--root", self.root / "store", "--runroot", self.root / "run")
        return ran("buildah", *places, *arguments)

    def image_of(self, tree: Path, name: str) -> None:
        """An image of one layer: what is below `tree`."""
        context = self.root / f"context-{name}"
        context.mkdir()
        with tarfile.open(context / "root.tar", "w") as archive:
            archive.add(tree, arcname=".")
        (context / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
        self.build(context, name)
        shutil.rmtree(context)

    def build(self, context: Path, name: str, *flags: str | Path, **arguments: str) -> None:
        """Build `context`'s Dockerfile; `arguments` are its build arguments."""
        given = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        self.buildah(
            *("bud", "--isolation", "chroot", "--network", "host", "--format", "docker", "-t", name),
            *flags,
            *given,
            *("-f", context / "Dockerfile", context),
        )

    def configuration(self, name: str) -> dict[str, Any]:
        """What the image says of itself."""
        described = json.loads(self.buildah("inspect", "--type", "image", name))
        found: dict[str, Any] = described["Docker"]["config"]
        return found

    @contextmanager
    def tree(self, name: str) -> Generator[Path]:
        """The image's files, mounted."""
        container = self.buildah("from", "--pull-never", name).strip()
        try:
            yield Path(self.buildah("mount", container).strip())
        finally:
            self.buildah("umount", container)
            self.buildah("rm", container)

    def clean(self) -> None:
        """Take everything away."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        shutil.rmtree(self.root)


def debian(place: Path) -> None:
    """A Debian with Python and its venv, and nothing else, at `place`; debootstrap knows its mirror."""
    given = os.environ.get("DEVICELENS_IMAGE_MIRROR")
    mirror = [] if given is None else [given]
    ran("debootstrap", "--variant=minbase", "--include=python3,python3-venv", SUITE, place, *mirror)
    shutil.rmtree(place / "var/cache/apt", ignore_errors=True)
    shutil.rmtree(place / "var/lib/apt/lists", ignore_errors=True)


def pip_like_here(place: Path) -> list[str]:
    """Flags that let pip in a build reach what it reaches here, with nothing of it in the image."""
    told = ran(sys.executable, "-m", "pip", "config", "list")
    settings = dict(re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'$", told, re.MULTILINE))
    settings.pop("require-virtualenv", None)
    (place / "pip.conf").write_text(
        "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
    )
    mounts = {place / "pip.conf": Path("/etc/pip.conf")}
    for path in re.findall(r"(?:file://)?(/[^\s]+)", " ".join(settings.values())):
        # The directory that a part of its packages may be linked from.
        shown = Path("/", *Path(path).parts[1:3]) if Path(path).is_dir() else Path(path)
        if shown.exists():
            mounts[shown] = shown
    return [flag for here, there in mounts.items() for flag in ("--volume", f"{here}:{there}:ro")]


def content(tree: Path) -> dict[str, str]:
    """Everything below `tree` but times and owners: its kind, mode, and what is in it."""
    found: dict[str, str] = {}
    for path in sorted(tree.rglob("*")):
        mode = path.lstat().st_mode
        if path.is_symlink():
            what = str(path.readlink())
        elif path.is_file():
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            what = ""
        found[str(path.relative_to(tree))] = f"{mode:o} {what}"
    return found


def runtime() -> str | None:
    """The container runtime that came with buildah."""
    return shutil.which("crun") or shutil.which("runc")


class Container:
    """A container of a manifest's, run as the kubelet would have it run: read-only, without a capability.

    On the host's network, and without a limit of memory, since neither is what is looked at here.
    """

    def __init__(
        self, tree: Path, place: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._place = place
        self._name = f"devicelens-{place.name}-{os.getpid()}"
        self._state = place / "state"
        self._process: asyncio.subprocess.Process | None = None
        self.lines: list[str] = []
        self.configuration = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": list(arguments),
                "env": [f"{key}={value}" for key, value in environment.items()],
                "cwd": "/",
                "capabilities": {
                    kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")
                },
                "noNewPrivileges": True,
            },
            "root": {"path": str(tree), "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/dev",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "mode=755"],
                },
            ],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "maskedPaths": ["/proc/kcore", "/proc/keys"],
                "readonlyPaths": ["/proc/bus", "/proc/sys"],
            },
        }

    def mount(self, source: Path, destination: str, *, read_only: bool) -> None:
        """A directory of the node."""
        mounts = self.configuration["mounts"]
        assert isinstance(mounts, list)
        options = ["rbind", "ro" if read_only else "rw"]
        mounts.append({"destination": destination, "type": "bind", "source": str(source), "options": options})

    async def __aenter__(self) -> Self:
        self._place.mkdir(parents=True, exist_ok=True)
        (self._place / "config.json").write_text(json.dumps(self.configuration))
        self._process = await asyncio.create_subprocess_exec(
            *(*self._command(), "run", "--bundle", str(self._place), self._name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        process = self._process
        assert process is not None
        if process.returncode is None:
            await self.told("kill", self._name, "KILL")
            await process.wait()
        await self._reader
        await self.told("delete", "--force", self._name)
        if kind is not None:
            print(f"--- {self._name}", *self.lines, sep="\n")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def _command(self) -> tuple[str, ...]:
        found = runtime()
        assert found is not None
        return found, "--root", str(self._state)

    async def told(self, *arguments: str) -> tuple[int, str]:
        """The exit status and the output of one of the runtime's commands."""
        process = await asyncio.create_subprocess_exec(
            *self._command(), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace")

    async def run(self, *command: str) -> tuple[int, str]:
        """A command beside the process, in its container."""
        return await self.told("exec", self._name, *command)

    async def end(self, *, limit: float = 10.0) -> int:
        """SIGTERM to its process 1, as a kubelet sends it; the exit status."""
        process = self._process
        assert process is not None
        status, output = await self.told("kill", self._name, "TERM")
        assert status == 0, output
        async with asyncio.timeout(limit):
            return await process.wait()
