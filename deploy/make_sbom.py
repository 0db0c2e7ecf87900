"""`make sbom`: the bill of materials of what the image adds to its base, as CycloneDX JSON.

requirements/image.txt has the packages; this environment's packages declare dependencies and licences. The
publisher of the base describes the base.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from runtime import __version__

ROOT: Final = Path(__file__).parents[1]
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


class SbomError(Exception):
    """An installed package differs from the lock file."""


def locked(text: str) -> dict[str, str]:
    """Name, as PyPI normalizes it, and version of each package of a lock file."""
    return {normal(name): version for name, version in _LOCKED.findall(text)}


def normal(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def shipped(document: Mapping[str, Any], packages: Mapping[str, str]) -> dict[str, Any]:
    """The part of an environment's `document` that is in the image: `packages`, without addresses.

    Raises SbomError for a missing package or another version.
    """
    found = {normal(entry["name"]): entry for entry in document["components"]}
    for name, version in packages.items():
        here = found.get(name, {}).get("version", "not installed")
        if here != version:
            raise SbomError(
                f"{name}: found {here}, expected the locked {version}: install requirements/image.txt again"
            )
    kept = [_without_addresses(found[name]) for name in sorted(packages)]
    refs = {entry["bom-ref"] for entry in kept}
    root = document["metadata"]["component"] | {"version": __version__}
    return {
        "$schema": document["$schema"],
        "bomFormat": document["bomFormat"],
        "specVersion": document["specVersion"],
        "version": 1,
        "metadata": {
            **{key: document["metadata"][key] for key in ("timestamp",) if key in document["metadata"]},
            "component": _without_addresses(root),
        },
        "components": kept,
        "dependencies": [
            {
                "ref": entry["ref"],
                "dependsOn": sorted(ref for ref in entry.get("dependsOn", []) if ref in refs),
            }
            for entry in document["dependencies"]
            if entry["ref"] in refs or entry["ref"] == root["bom-ref"]
        ],
    }


def _without_addresses(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in {"externalReferences", "properties"}}


def environment() -> Mapping[str, Any]:
    """The bill of materials of this Python's environment."""
    document: Mapping[str, Any] = json.loads(
        subprocess.run(  # noqa: S603 -- this Python
            [
                *(
                    sys.executable,
                    "-W",
                    "ignore",
                    "-m",
                    "cyclonedx_py",
                    "environment",
                    "--output-reproducible",
                    "--no-validate",  # what is kept of it is validated
                ),
                *("--pyproject", str(ROOT / "pyproject.toml"), "-o", "-", sys.executable),
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        ).stdout
    )
    return document


def main(path: Path) -> int:
    """Write the bill of materials to `path` if it is valid by CycloneDX's schema. Returns the exit code."""
    try:
        document = shipped(environment(), locked((ROOT / "requirements" / "image.txt").read_text()))
    except SbomError as error:
        print(error, file=sys.stderr)  # noqa: T201 -- a command
        return 1
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    problem = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"])).validate_str(text)
    if problem is not None:
        print(problem, file=sys.stderr)  # noqa: T201 -- a command
        return 1
    path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
