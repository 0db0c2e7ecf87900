"""Processes that tests start have default signal handlers, however pytest itself is started."""

import subprocess
import sys


def test_a_process_that_a_test_starts_ignores_no_signal() -> None:
    code = (
        "import signal; print([s.name for s in (signal.SIGINT, signal.SIGQUIT)"
        " if signal.getsignal(s) is signal.SIG_IGN])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_pytest_resets_signals_that_a_script_in_the_background_ignores() -> None:
    test = f"{__file__}::{test_a_process_that_a_test_starts_ignores_no_signal.__name__}"
    done = subprocess.run(
        [
            *("sh", "-c", "trap '' INT QUIT; exec \"$@\"", "sh"),
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
