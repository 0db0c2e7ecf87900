"""The image, built where no registry is: what is in it, that it can be built again to the byte, and that both
processes run from it as the manifests have them run.

`make image-test` runs this: it takes minutes, root, buildah and debootstrap.
"""

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from harness.oci import Container, Store, content, debian, pip_like_here, runtime
from harness.tree import ROOT, copied
from harness.waiting import until
from runtime import __version__
from simulator import SimulatedKubelet
from simulator.model import ContainerSpec, PodSpec

REVISION = "0123456789abcdef0123456789abcdef01234567"
EPOCH = "1700000000"
LARGEST = 100 << 20
"""Bytes that the image may add to its base."""

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("DEVICELENS_IMAGE") != "1", reason="it takes minutes: `make image-test` runs it"
    ),
]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    if os.geteuid() != 0:
        pytest.skip("debootstrap wants root")
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {program}")
    found = Store(Path(tempfile.mkdtemp(prefix="dlimage")))
    try:
        kept = os.environ.get("DEVICELENS_IMAGE_ROOTFS")
        rootfs = Path(kept) if kept else found.root / "debian"
        if not (rootfs / "usr/bin/python3").exists():
            began = time.monotonic()
            debian(rootfs)
            print(f"debootstrap: {time.monotonic() - began:.0f} s")
        found.image_of(rootfs, "base")
        yield found
    finally:
        found.clean()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as it is now: whoever works in it meanwhile changes no build."""
    return copied(tmp_path_factory.mktemp("sources") / "tree")


@pytest.fixture(scope="module")
def image(store: Store, sources: Path) -> str:
    began = time.monotonic()
    build(store, sources, "first")
    print(f"build: {time.monotonic() - began:.0f} s")
    return "first"


def build(store: Store, sources: Path, name: str, version: str = __version__) -> None:
    store.build(
        sources,
        name,
        *pip_like_here(store.root),
        BASE="localhost/base",
        SOURCE_DATE_EPOCH=EPOCH,
        VERSION=version,
        REVISION=REVISION,
    )


def test_two_builds_are_equal(store: Store, sources: Path, image: str) -> None:
    build(store, sources, "second")
    with store.tree(image) as one, store.tree("second") as other:
        first, second = content(one), content(other)
        different = sorted(
            name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
        )
        assert different == []
        younger = [
            str(path.relative_to(one))
            for path in (one / "opt/devicelens").rglob("*")
            if path.lstat().st_mtime != int(EPOCH)
        ]
        assert younger == [], "\n".join(younger)


def test_another_version_than_the_program_s_is_refused(store: Store, sources: Path, image: str) -> None:
    with pytest.raises(AssertionError, match="test -z"):
        build(store, sources, "wrong", version="9.9.9")
    assert image


def test_what_is_added_is_devicelens_and_what_python_compiles(store: Store, image: str) -> None:
    with store.tree("base") as base, store.tree(image) as tree:
        before, after = set(listed(base)), set(listed(tree))
        # Where pip's own places were mounted in this test's build.
        mounted = {flag.split(":")[1].lstrip("/") for flag in pip_like_here(store.root) if ":" in flag}
        added = after - before - mounted
        # Python's own modules, compiled where the base has none.
        elsewhere = {name for name in added if not name.startswith("opt/") and "__pycache__" not in name}
        assert elsewhere == set()
        assert {name for name in added if name.startswith("opt/")} <= {
            name for name in added if name.startswith("opt/devicelens/")
        } | {"opt/devicelens"}
        packages = {
            path.name.lower() for path in (tree / "opt/devicelens/lib").glob("python*/site-packages/*")
        }
        for tool in ("pip", "setuptools", "wheel", "hatchling", "pytest"):
            assert tool not in packages
        installed = {
            re.sub(r"-[^-]*\.dist-info$", "", name).replace("_", "-")
            for name in packages
            if name.endswith(".dist-info")
        }
        locked = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/image.txt").read_text(), re.MULTILINE)
        assert installed <= {*locked, "devicelens"}
        programs = {path.name for path in (tree / "opt/devicelens/bin").iterdir()}
        assert not {name for name in programs if name.startswith(("pip", "activate", "gcc"))}
        # Whoever runs it needs nothing compiled at start.
        sources_ = {name for name in added if name.startswith("opt/") and name.endswith(".py")}
        compiled = {re.sub(r"__pycache__/(.*)\.cpython-[0-9]+\.pyc$", r"\1.py", name) for name in added}
        assert sources_ <= compiled | sources_ & {name for name in sources_ if "/bin/" in name}
        size = sum((tree / name).lstat().st_size for name in added)
        print(
            f"added to the base: {mebibytes(size)}, taken away: {mebibytes(bytes_of(base, before - after))}"
        )
        print(f"in all: {mebibytes(bytes_of(tree, after))}")
        assert size < LARGEST


def bytes_of(tree: Path, names: set[str]) -> int:
    return sum((tree / name).lstat().st_size for name in names)


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


TOOLS = re.compile(
    r"(apt|apt-[a-z-]+|dpkg|dpkg-[a-z-]+|apk|dnf|rpm|yum|pip[0-9.]*|gcc.*|g\+\+.*|cc|c\+\+|clang.*|ld|as|make)"
)


def test_nothing_is_left_in_it_to_install_or_to_build_with(store: Store, image: str) -> None:
    with store.tree("base") as base, store.tree(image) as tree:

        def tools(root: Path) -> set[str]:
            places = ("usr/bin", "usr/sbin", "usr/local/bin", "bin", "sbin", "opt/devicelens/bin")
            return {
                path.name
                for place in places
                if (root / place).is_dir()
                for path in (root / place).iterdir()
                if TOOLS.fullmatch(path.name)
            }

        assert {"apt-get", "dpkg"} <= tools(base), "this base shows nothing"
        assert tools(tree) == set()
        before, after = set(listed(base)), set(listed(tree))
        # pip comes as a wheel, too, from which a Python could make itself one.
        for part in ("ensurepip", "python-wheels", "libapt-pkg"):
            assert any(part in name for name in before), part
            assert not any(part in name for name in after), part
        kept = {name for name in before - after if not re.search(r"apt|dpkg|pip|wheels", name)}
        assert kept == set(), "more than that was taken away"
        # A scanner knows by it which packages of the distribution are there.
        assert (tree / "var/lib/dpkg/status").is_file()
        assert any(path.lstat().st_mode & 0o6000 for path in base.rglob("*") if path.is_file())
        raising = [
            str(path)
            for path in tree.rglob("*")
            if path.is_file() and not path.is_symlink() and path.lstat().st_mode & 0o6000
        ]
        assert raising == []


def listed(tree: Path) -> Iterator[str]:
    for path in tree.rglob("*"):
        yield str(path.relative_to(tree))


def test_the_image_says_what_it_is_and_how_to_tell_whether_it_is_well(store: Store, image: str) -> None:
    described = store.configuration(image)
    labels = described["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"] == REVISION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.source"].startswith("https://")
    assert labels["org.opencontainers.image.base.name"] == "localhost/base"
    assert described["Healthcheck"]["Test"] == ["CMD", "devicelens", "healthy"]
    assert described["Entrypoint"] == ["devicelens"]
    assert described["Cmd"] == ["exporter"]
    assert sorted(described["ExposedPorts"]) == ["10190/tcp", "10191/tcp"]


def manifest() -> Mapping[str, Any]:
    daemonset = yaml.safe_load((ROOT / "deploy/base/daemonset.yaml").read_text())
    found: Mapping[str, Any] = daemonset["spec"]["template"]["spec"]
    return found


def container(
    name: str, tree: Path, place: Path, node: Path, of_image: list[str], **environment: str
) -> Container:
    """A container of deploy/base, its directories of the node found below `node`."""
    pod = manifest()
    (entry,) = (found for found in pod["containers"] if found["name"] == name)
    given = {value["name"]: value["value"] for value in entry["env"] if "value" in value}
    made = Container(
        tree,
        place,
        ["devicelens", *entry["args"]],
        {**dict(part.split("=", 1) for part in of_image), "NODE_NAME": "n", **given, **environment},
    )
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in entry["volumeMounts"]:
        volume = volumes[mount["name"]]
        source = (
            node / volume["hostPath"]["path"].lstrip("/") if "hostPath" in volume else node / "configuration"
        )
        source.mkdir(parents=True, exist_ok=True)
        made.mount(source, mount["mountPath"], read_only=mount.get("readOnly", False))
    return made


async def url_of(made: Container) -> str:
    async def found() -> str | None:
        match = re.search(r"\burl=(http://[^\s]+)", "\n".join(made.lines))
        return match[1].replace("[::]", "127.0.0.1") if match else None

    return await until("its address", found, limit=60)


async def fetched(session: aiohttp.ClientSession, url: str) -> str | None:
    async with session.get(url) as answer:
        return await answer.text() if answer.status == 200 else None


async def test_both_processes_run_from_it_as_the_manifest_says(
    store: Store, image: str, tmp_path: Path
) -> None:
    if runtime() is None:
        pytest.skip("neither crun nor runc is installed: apt-get install crun")
    node = Path(tempfile.mkdtemp(prefix="dl"))
    kubelet = node / "var/lib/kubelet"
    (node / "dev").mkdir()
    (node / "dev/video0").write_text("")
    (node / "configuration").mkdir()
    shutil.copyfile(ROOT / "deploy/base/plugin.yaml", node / "configuration/plugin.yaml")
    listen = {"DEVICELENS_WEB_LISTEN_ADDRESS": "127.0.0.1:0"}
    said_by_image = store.configuration(image)["Env"]
    try:
        with store.tree(image) as tree:
            async with (
                SimulatedKubelet(kubelet) as simulated,
                container("plugin", tree, tmp_path / "p", node, said_by_image, **listen) as plugin,
                aiohttp.ClientSession() as session,
            ):
                told = await url_of(plugin)
                exporter = container(
                    "exporter",
                    tree,
                    tmp_path / "e",
                    node,
                    said_by_image,
                    **listen,
                    DEVICELENS_PLUGIN_URL=told,
                )
                async with exporter:
                    page = await url_of(exporter)
                    await until("registered", lambda: registered(simulated), limit=60)
                    await simulated.add_pod(
                        PodSpec(
                            name="filming",
                            namespace="studio",
                            containers=(ContainerSpec("main", resources={"example.com/camera": 1}),),
                        )
                    )

                    async def owned() -> str | None:
                        text = await fetched(session, f"{page}/metrics")
                        found = re.search(r"^devicelens_device_owner_info\{.*\} 1", text or "", re.MULTILINE)
                        return found[0] if found else None

                    owner = await until("an owner in /metrics", owned, limit=60)
                    for part in ('device="video0"', 'namespace="studio"', 'pod="filming"', 'node="n"'):
                        assert part in owner
                    assert "devicelens_plugin_registered" in (await fetched(session, f"{told}/metrics") or "")
                    for made in (exporter, plugin):
                        assert any('msg="can reach"' in line for line in made.lines), made.lines
                        # Process 1 is what listens, on a port that only it knows: the log tells it here.
                        status, said = await made.run("cat", "/proc/1/status")
                        assert status == 0, said
                        assert re.search(r"^CapEff:\s+0{16}$", said, re.MULTILINE)
                        assert re.search(r"^CapBnd:\s+0{16}$", said, re.MULTILINE)
                        assert re.search(r"^NoNewPrivs:\s+1$", said, re.MULTILINE)
                        status, said = await made.run("touch", "/tmp/x")
                        assert status != 0
                        assert "Read-only" in said
                    status, said = await exporter.run(
                        *("devicelens", "healthy", "--ready", "--web.listen-address"), page.partition("//")[2]
                    )
                    assert (status, said.strip()) == (0, "ready")
                    status, said = await exporter.run("devicelens", "--version")
                    assert said.strip() == f"devicelens, version {__version__} (revision {REVISION})"
                    began = time.monotonic()
                    statuses = [*await asyncio.gather(exporter.end(), plugin.end())]
                    assert statuses == [0, 0]
                    assert time.monotonic() - began < 5
                left = {path.name for path in (kubelet / "device-plugins").iterdir() if path.is_socket()}
                assert left == {"kubelet.sock"}
                assert not any("Traceback" in line for made in (exporter, plugin) for line in made.lines)
    finally:
        shutil.rmtree(node)


async def registered(simulated: SimulatedKubelet) -> bool:
    return simulated.allocatable("example.com/camera") == 1
