"""`devicelens check`, as people and pipelines use it."""

from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from devicelens import main

GOOD = """\
version: 1
resources:
  - name: example.com/camera
    discover: [{glob: {paths: [/dev/video*]}}]
"""


def check(*files: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["check", *files], input=stdin)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


def test_a_valid_file(good: Path) -> None:
    result = check(str(good))
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{good}: ok, 1 resource\n", "")


def test_an_error_is_one_line_and_other_files_are_checked(good: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(GOOD.replace("glob", "globe"))
    result = check(str(bad), str(good), str(tmp_path / "none.yaml"), str(tmp_path))
    assert result.exit_code == 1
    assert result.stdout == f"{good}: ok, 1 resource\n"
    assert result.stderr.splitlines() == [
        f"{bad}:4: resources[0].discover[0].globe: found an unknown key 'globe', did you mean 'glob'?",
        f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory",
        f"{tmp_path}: cannot be read: Is a directory",
    ]


def test_what_is_not_allowed_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mounts.yaml"
    file.write_text(GOOD + "    allocate:\n      mounts: [{host: /etc}]\n")
    assert check(str(file)).exit_code == 0
    assert check("--allow", "host-mounts", str(file)).exit_code == 0
    result = check("--allow", "exec", str(file))
    assert result.exit_code == 1
    assert result.stderr == (
        f"{file}:6: resources[0].allocate.mounts[0]: found what needs the privilege 'host-mounts', which "
        "--allow leaves out\n"
    )
    assert "expected none, or some of exec,host-mounts" in check("--allow", "execs", str(file)).stderr


def test_standard_input() -> None:
    assert check("-", stdin=GOOD).stdout == "stdin: ok, 1 resource\n"
    result = check("-", stdin=GOOD.replace("version: 1", "version: 3"))
    assert (result.exit_code, result.stderr) == (1, "stdin:1: version: found 3, expected 1\n")


def test_valid_files_are_checked_together(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("# the same\n" + GOOD)
    result = check(str(good), str(other))
    assert result.exit_code == 1
    assert result.stderr == (
        f"{other}:4: resources[0].name: found 'example.com/camera', which {good}:3 has too\n"
    )


@pytest.fixture
def web(tmp_path: Path) -> Path:
    certificate = trustme.CA().issue_cert("node.example")
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    path = tmp_path / "web.yaml"
    path.write_text("tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n")
    return path


def test_the_keys_show_the_kind_of_a_file(web: Path, good: Path) -> None:
    result = check(str(web), str(good))
    assert (result.exit_code, result.stdout) == (0, f"{web}: ok, TLS\n{good}: ok, 1 resource\n")


def test_certificates_of_a_web_configuration_are_checked(web: Path) -> None:
    other = trustme.CA().issue_cert("node.example")
    other.private_key_pem.write_to_path(str(web.parent / "tls.key"))
    result = check(str(web))
    key = web.parent / "tls.key"
    assert (result.exit_code, result.stderr) == (
        1,
        f"{web}:3: tls_server_config.key_file: {key} is not the key of the certificate\n",
    )
    key.unlink()
    assert check(str(web)).stderr == (
        f"{web}:3: tls_server_config.key_file: {key} cannot be read: No such file or directory\n"
    )
    assert check(str(web), "--syntax-only").exit_code == 0


def test_the_kind_of_a_file_can_be_given(good: Path, web: Path) -> None:
    assert check("--kind", "plugin", str(good)).exit_code == 0
    assert "unknown key 'version'" in check("--kind", "web", str(good)).stderr
    assert "unknown key 'tls_server_config'" in check("--kind", "plugin", str(web)).stderr
    # A file without a known key is taken for the plugin's, which most people check.
    mistyped = "tls_server_confi: {}\n"
    assert "unknown key 'tls_server_confi'" in check("-", stdin=mistyped).stderr
    assert "did you mean 'tls_server_config'" in check("--kind", "web", "-", stdin=mistyped).stderr
    result = check("-", stdin="tls_server_config:\n  cert_fil: x\n")
    assert (result.exit_code, result.stderr) == (
        1,
        "stdin:2: tls_server_config.cert_fil: found an unknown key 'cert_fil', did you mean 'cert_file'?\n",
    )


def test_wrong_usage(good: Path) -> None:
    assert check().exit_code == 2
    assert "2 times, expected each file once" in check(str(good), str(good)).stderr


def test_control_characters_reach_no_terminal(tmp_path: Path) -> None:
    evil = tmp_path / "a\n\x1b[31m.yaml"
    evil.write_bytes(b"version: \x1b[31m\n")
    result = check(str(evil))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.isprintable()
