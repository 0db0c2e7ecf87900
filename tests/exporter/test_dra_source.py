"""exporter.main: which sources --dra.source uses."""

from pathlib import Path

import pytest
from msgspec import json

from exporter import main as exporter_main
from exporter.dra.tracker import DraTracker
from exporter.main import _dra  # pyright: ignore[reportPrivateUsage]
from exporter.settings import ExporterSettings
from runtime.directory import DirectoryWatcher
from runtime.process import Fatal

HERE = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_bytes(json.encode(HERE))
    return path


@pytest.fixture(autouse=True)
def _nothing_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(exporter_main, "ACCOUNT", tmp_path / "account")
    monkeypatch.setattr(exporter_main, "CDI_DIRECTORIES", (tmp_path / "etc", tmp_path / "cdi"))


def sources(**settings: object) -> list[str]:
    found: DraTracker | None = _dra(ExporterSettings(**{"node_name": "n"} | settings), DirectoryWatcher())  # type: ignore[arg-type]
    return [] if found is None else [one.name for one in found.view.sources]


def test_auto_uses_what_is_there(tmp_path: Path, kubeconfig: Path) -> None:
    assert sources() == []
    (tmp_path / "cdi").mkdir()
    assert sources() == ["cdi"]
    assert sources(kubeconfig=kubeconfig) == ["slices", "claims"]


def test_auto_uses_the_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "account").mkdir()
    (tmp_path / "account/token").write_text("t")
    # Without the address of an API server the token is of no use.
    assert sources() == []
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setattr(
        "exporter.apiserver.kubeconfig.api_server_access.__kwdefaults__", {"account": tmp_path / "account"}
    )
    (tmp_path / "account/ca.crt").write_text("")
    assert sources() == ["slices", "claims"]


def test_a_source_that_is_configured_is_used(tmp_path: Path, kubeconfig: Path) -> None:
    (tmp_path / "cdi").mkdir()
    assert sources(dra_source="none", kubeconfig=kubeconfig) == []
    assert sources(dra_source="cdi", kubeconfig=kubeconfig) == ["cdi"]
    assert sources(dra_source="slices", kubeconfig=kubeconfig) == ["slices", "claims"]
    with pytest.raises(Fatal, match=r"^--dra.source slices: this is no pod"):
        sources(dra_source="slices")
