"""What is released is whole: the wheel runs outside the tree, the sdist makes the same wheel, and both can be
made again to the byte.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from harness.tree import ROOT, copied, listed
from harness.waiting import until
from runtime import __version__

pytestmark = pytest.mark.timeout(600)

EPOCH = "1700000000"
PACKAGES = ("exporter/", "kubelet/", "plugin/", "runtime/", "simulator/")
NAME = f"devicelens-{__version__}"


def ran(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DEVICELENS_", "PYTHON"))}
    told = subprocess.run(
        command,
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert told.returncode == 0, f"{command}: {told.returncode}\n{told.stdout}\n{told.stderr}"
    return told.stdout


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path
    sdist: Path


def build(tree: Path, place: Path) -> Built:
    ran(sys.executable, "-m", "hatchling", "build", "-d", place, cwd=tree, SOURCE_DATE_EPOCH=EPOCH)
    return Built(place / f"{NAME}-py3-none-any.whl", place / f"{NAME}.tar.gz")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("release")
    return build(copied(place / "tree"), place / "dist")


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name for name in listed() if name.startswith(PACKAGES)} | {
        "devicelens.py",
        "devicelens_check.py",
    }
    assert names == expected
    # What is no Python is what is forgotten.
    for part in ("exporter/web/pages/", "exporter/web/static/", "plugin/presets/nvidia.yaml"):
        assert any(name.startswith(part) for name in names), part


def test_the_sdist_has_what_it_takes_to_test_and_to_deploy_it(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    left_out = re.compile(r"^\.(?!dockerignore)")
    expected = {name for name in listed() if not left_out.search(name)}
    assert names - {"PKG-INFO", ".gitignore"} == expected


def test_the_sdist_makes_both_again_to_the_byte(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build(tmp_path / NAME, tmp_path / "dist")
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.sdist.read_bytes() == built.sdist.read_bytes()


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel in it, and the locked packages of this one."""
    place = tmp_path_factory.mktemp("installed")
    ran(sys.executable, "-m", "venv", "--without-pip", place)
    python = place / "bin/python"
    ran(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"),
        *("--disable-pip-version-check", built.wheel),
    )
    packages = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path in a .pth is a path alone: this environment's own editable devicelens does not come with it.
    own = (path for path in sys.path if path.endswith("site-packages"))
    (packages / "locked.pth").write_text("".join(f"{path}\n" for path in own))
    return place / "bin"


def test_the_command_runs_from_the_wheel_and_from_nowhere_else(installed: Path, tmp_path: Path) -> None:
    told = ran(installed / "devicelens", "--version", cwd=tmp_path)
    assert told == f"devicelens, version {__version__}\n"
    modules = ["devicelens", "runtime.http", "exporter.main", "plugin.main", "simulator.demo"]
    code = "import importlib, sys; print(*(importlib.import_module(m).__file__ for m in sys.argv[1:]))"
    for file in ran(installed / "python", "-c", code, *modules, cwd=tmp_path).split():
        assert file.startswith(str(installed.parent))


def test_presets_and_the_schema_come_with_it(installed: Path, tmp_path: Path) -> None:
    presets = [Path(name).stem for name in listed() if re.fullmatch(r"plugin/presets/[^/]+\.yaml", name)]
    assert len(presets) > 10
    code = "import sys; from plugin.presets import PRESETS; print(*(PRESETS[p] for p in sys.argv[1:]))"
    for file in ran(installed / "python", "-c", code, *presets, cwd=tmp_path).split():
        assert Path(file).is_file()
        assert Path(file).is_relative_to(installed.parent)
    (tmp_path / "plugin.yaml").write_text("version: 1\nresources:\n  - preset: cola\n")
    ran(installed / "devicelens", "check", "plugin.yaml", cwd=tmp_path)


async def test_the_demo_runs_from_the_wheel_and_its_page_has_its_looks(installed: Path) -> None:
    # Short, for the sockets in it.
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        await shown(installed, directory)


async def shown(installed: Path, directory: str) -> None:
    process = await asyncio.create_subprocess_exec(
        installed / "devicelens",
        "demo",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=directory,
        env={"PATH": os.defpath, "TMPDIR": directory, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    said = b""
    try:
        async with asyncio.timeout(60):
            while (match := re.search(rb"http://[0-9.]+:[0-9]+", said)) is None:
                part = await process.stdout.readline()
                assert part, said.decode()
                said += part
        url = match[0].decode()
        async with aiohttp.ClientSession() as session:

            async def page() -> str | None:
                async with session.get(url) as answer:
                    text = await answer.text()
                    return text if answer.status == 200 and "</html>" in text else None

            text = await until("the page", page, limit=60)
            looks = re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
            assert looks
            for path in looks:
                async with session.get(url + path) as answer:
                    assert answer.status == 200, path
    finally:
        if process.returncode is None:
            process.terminate()
        rest, _ = await process.communicate()
    assert process.returncode == 0, (said + rest).decode()
    assert b"Traceback" not in said + rest


def tagged(place: Path, *tags: str) -> subprocess.CompletedProcess[str]:
    """`make tag-test` in a repository whose only commit has these tags."""
    (place / "runtime").mkdir()
    shutil.copyfile(ROOT / "Makefile", place / "Makefile")
    shutil.copyfile(ROOT / "runtime/__init__.py", place / "runtime/__init__.py")
    git = ["git", "-C", str(place), "-c", "user.name=n", "-c", "user.email=e@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"], *(["tag", tag] for tag in tags)):
        subprocess.run([*git, *command], check=True, capture_output=True)
    return subprocess.run(["make", "tag-test"], cwd=place, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("git")), reason="make or git is not installed")
@pytest.mark.parametrize(("tags", "right"), [((), True), ((f"v{__version__}",), True), (("v99.0.0",), False)])
def test_a_tag_that_says_another_version_stops_the_release(
    tmp_path: Path, tags: tuple[str, ...], right: bool
) -> None:
    told = tagged(tmp_path, *tags)
    assert (told.returncode == 0) == right, told.stderr
    if not right:
        assert f"HEAD is tagged v99.0.0, and runtime/__init__.py says {__version__}" in told.stdout
