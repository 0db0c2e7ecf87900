"""The committed stubs are those of the sources."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "kubelet" / "pb"

SOURCES = (
    "podresources/v1/api",
    "podresources/v1alpha1/api",
    "pods/v1alpha1/api",
    "core/v1/pod",
    "deviceplugin/v1beta1/api",
    "pluginregistration/v1/api",
    "dra/v1/api",
    "drahealth/v1alpha1/api",
)

WITHOUT_SERVICE = {"core/v1/pod"}


def test_the_retired_number_of_a_claim_cannot_be_used_again() -> None:
    source = (ROOT / "proto" / "podresources" / "v1" / "api.proto").read_text(encoding="utf-8")
    (claim,) = [part for part in source.split("message ") if part.startswith("DynamicResource ")]
    assert "reserved 1;" in claim


def test_every_source_has_its_stubs_and_every_stub_its_source() -> None:
    sources = {
        path.relative_to(ROOT / "proto").with_suffix("").as_posix()
        for path in (ROOT / "proto").rglob("*.proto")
    }
    assert sources == set(SOURCES)
    assert not list((ROOT / "proto").rglob("__init__.py")), "proto/ must not be importable"
    assert {path.relative_to(STUBS).as_posix().split("_pb2")[0] for path in _stubs(STUBS)} == sources


def _stubs(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*_pb2*.py*") if "__pycache__" not in path.parts]


def test_the_committed_stubs_are_what_the_sources_give(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            "kubelet/pb=proto",
            f"--python_out={tmp_path}",
            f"--grpc_python_out={tmp_path}",
            f"--mypy_out=quiet:{tmp_path}",
            f"--mypy_grpc_out=quiet:{tmp_path}",
            *(f"kubelet/pb/{name}.proto" for name in SOURCES),
        ],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=True,
        timeout=200,
    )
    generated = tmp_path / "kubelet" / "pb"
    for name in WITHOUT_SERVICE:
        for ending in ("py", "pyi"):
            (generated / f"{name}_pb2_grpc.{ending}").unlink()
    made = {path.relative_to(generated): path.read_text(encoding="utf-8") for path in _stubs(generated)}
    committed = {path.relative_to(STUBS): path.read_text(encoding="utf-8") for path in _stubs(STUBS)}
    assert made.keys() == committed.keys()
    for path, text in made.items():
        assert committed[path] == text, f"{path} is not what the sources give: make proto"
