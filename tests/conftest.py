"""Settings of all tests: environment, default signals, hypothesis, the order of tests for xdist."""

import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness.worker_order import ordered_for

# Tests start hundreds of processes, and each takes 1.5 s longer if it has to compile the project's modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# jsonschema uses it for the format `iri`, which nothing here has; importing it builds 38 grammars in 2 s.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# What collection leaves stays to the end: nothing of it is collected meanwhile, or examined afterwards.
gc.disable()

# Requests to this machine never go through a proxy.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "localhost,127.0.0.1,::1")))

# A shell starts the background jobs of a script with SIGINT and SIGQUIT ignored, and a child inherits that.
# Every process that tests start has the default handlers.
for _signal, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _default)

# Every run has the same examples, whatever the machine's speed: a failure can be repeated.
# `pytest --hypothesis-profile=explore` tries others.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("suite"), derandomize=False, print_blob=True)
settings.load_profile("suite")


@pytest.fixture
def root() -> Iterator[Path]:
    """An empty directory whose path is short enough for unix sockets below it. Every user can read it."""
    directory = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def sockets(root: Path) -> Path:
    """The same, for tests that keep nothing but sockets there."""
    return root


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start each worker with long tests, so that the run does not end with workers that wait for one.

    Long tests are those of modules with a time limit of their own.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        modules = [list(found) for _, found in itertools.groupby(items, lambda item: item.path)]
        items[:] = ordered_for(
            [module for module in modules if any(item.get_closest_marker("timeout") for item in module)],
            [module for module in modules if not any(item.get_closest_marker("timeout") for item in module)],
            workers,
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Also called where xdist's controller collects nothing."""
    gc.freeze()
    gc.enable()
