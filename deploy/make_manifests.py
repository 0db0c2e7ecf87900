"""Makes what is made in this folder: `make manifests`.

components/prometheus-operator/rules.yaml of dashboards/rules/*.yaml, and rendered/NAME.yaml of the base and
of each overlay, by kustomize (or kubectl, which has it). What is rendered is kept so that it can be read, and
be checked where there is no kustomize.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).parent
RULES: Final = DEPLOY.parent / "dashboards" / "rules"
RULES_FILE: Final = DEPLOY / "components" / "prometheus-operator" / "rules.yaml"
RENDERED: Final = DEPLOY / "rendered"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are read, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 -- PyYAML's signature
        """A rule is read alone."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def prometheus_rule(rules: Path = RULES) -> str:
    """The PrometheusRule with every group of the files in `rules`, in the order of their names."""
    groups: list[Any] = []
    for path in sorted(rules.glob("*.yaml")):
        groups += yaml.safe_load(path.read_text())["groups"]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "devicelens", "namespace": "devicelens"},
        "spec": {"groups": groups},
    }
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return f"# Made by `make manifests` of dashboards/rules: change it there.\n{body}"


def folders() -> list[Path]:
    """The base and each overlay."""
    return [DEPLOY / "base", *sorted(path.parent for path in DEPLOY.glob("overlays/*/kustomization.yaml"))]


def kustomize() -> list[str] | None:
    """The command that renders a folder, which is its last argument; None where there is none."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


def render(command: list[str], folder: Path) -> str:
    """What `kubectl apply -k` would apply. Raises CalledProcessError, with the reason on standard error."""
    return subprocess.run(  # noqa: S603 -- a fixed program and a folder of ours
        [*command, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def main() -> int:
    """Write all of it."""
    command = kustomize()
    if command is None:
        print("neither kustomize nor kubectl is installed", file=sys.stderr)  # noqa: T201 -- a command
        return 1
    RULES_FILE.write_text(prometheus_rule())
    RENDERED.mkdir(exist_ok=True)
    made = {RENDERED / f"{folder.name}.yaml": render(command, folder) for folder in folders()}
    for path in RENDERED.glob("*.yaml"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
