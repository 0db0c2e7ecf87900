"""The bill of materials names what is locked, and no address."""

import json
import re
from pathlib import Path

import pytest

from deploy.make_sbom import SbomError, locked, main, normal, shipped
from runtime import __version__

ROOT = Path(__file__).parents[2]
HERE = {
    "$schema": "s",
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {"component": {"bom-ref": "root", "name": "devicelens"}},
    "components": [{"bom-ref": "g", "name": "GrpcIO", "version": "1.2"}],
    "dependencies": [{"ref": "root", "dependsOn": ["g"]}, {"ref": "g"}],
}


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sbom") / "bill.json"
    assert main(path) == 0
    return path.read_text()


def test_it_has_each_locked_package_in_its_version_and_no_other(bill: str) -> None:
    document = json.loads(bill)
    packages = locked((ROOT / "requirements/image.txt").read_text())
    assert len(packages) > 15
    assert {normal(entry["name"]): entry["version"] for entry in document["components"]} == packages
    assert document["metadata"]["component"]["name"] == "devicelens"
    assert document["metadata"]["component"]["version"] == __version__
    # protobuf's packages declare no licence; theirs is BSD-3-Clause.
    undeclared = {entry["name"] for entry in document["components"] if not entry.get("licenses")}
    assert undeclared <= {"protobuf"}


def test_what_depends_on_what_is_in_it_and_leads_nowhere_else(bill: str) -> None:
    document = json.loads(bill)
    root = document["metadata"]["component"]["bom-ref"]
    known = {entry["bom-ref"] for entry in document["components"]}
    graph = {entry["ref"]: set(entry["dependsOn"]) for entry in document["dependencies"]}
    assert graph.keys() == known | {root}
    assert set().union(*graph.values()) <= known
    # Nothing is in it that nobody asked for.
    reached, left = set[str](), [root]
    while left:
        for ref in graph[left.pop()] - reached:
            reached.add(ref)
            left.append(ref)
    assert reached == known


def test_it_holds_no_address_and_no_path(bill: str) -> None:
    without_schema = re.sub(r'"\$schema": "[^"]*"', "", bill)
    assert not re.search(r"[a-z]+://|/home/|/root/|" + re.escape(str(ROOT)), without_schema)


def test_another_version_than_the_locked_one_is_an_error() -> None:
    with pytest.raises(SbomError, match=r"grpcio: found .*, expected the locked 0\.0\.1"):
        shipped(HERE, {"grpcio": "0.0.1"})
    with pytest.raises(SbomError, match="not installed"):
        shipped(HERE, {"no-such-package": "1"})
    assert [entry["name"] for entry in shipped(HERE, {"grpcio": "1.2"})["components"]] == ["GrpcIO"]
