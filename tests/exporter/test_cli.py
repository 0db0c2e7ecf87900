"""devicelens exporter: invalid flags are refused before the start."""

import pytest
from click.testing import CliRunner

from exporter.cli.exporter import exporter


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--poll.interval", "50ms"],
            "Invalid value for --poll.interval: found 0.05s, expected at least 0.1s",
        ),
        (["--poll.timeout", "0"], "Invalid value for --poll.timeout: found 0s, expected at least 0.1s"),
        (["--stale-after", "4s"], "Invalid value for --stale-after: found 4s, expected at least 5s"),
        (["--poll.interval", "2m"], "Invalid value for --stale-after: found 60s, expected at least 120s"),
        (["--poll.interval", "5"], "found '5', expected a duration"),
        (["--web.listen-address", "10190"], "found '10190', expected HOST:PORT"),
        (["--log.format", "xml"], "'xml' is not one of 'logfmt', 'json'"),
        (["--history.retention", "30"], "found '30', expected a duration"),
        (["--history.retention", "1s"], "found 1s, expected at least 60s"),
        (["--history.max-bytes", "12 MB"], "found '12 MB', expected a size such as"),
        (["--history.max-bytes", "1MiB"], "found 1MiB, expected at least 8MiB"),
        (["--history.path", "/tmp"], "File '/tmp' is a directory"),
        (["--plugin.cert-file", "a"], "expected --plugin.key-file too: a certificate is shown with its key"),
        (["--plugin.key-file", "a"], "expected --plugin.cert-file too: a certificate is shown with its key"),
        (["--pod-labels", "("], "found '(', expected a regular expression in RE2's syntax: missing )"),
        (["--pod-labels", "(?=a)b"], "in RE2's syntax: invalid perl operator"),
        (["--unknown"], "No such option"),
    ],
)
def test_invalid_flag_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(exporter, arguments)
    assert result.exit_code == 2
    assert said in result.output
