"""Settings of all tests: hypothesis, default signals, the order of tests for xdist."""

import itertools
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from harness.worker_order import ordered_for

# Whoever reaches the world by a proxy has none between this machine and itself.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "localhost,127.0.0.1,::1")))

# A shell starts the background jobs of a script with SIGINT and SIGQUIT ignored, and a child inherits that.
# Every process that tests start has the default handlers.
for _signal, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _default)

# The same examples in every run, however slow the machine is: what fails, fails again. Others are looked
# for by `pytest --hypothesis-profile=explore`.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("suite"), derandomize=False, print_blob=True)
settings.load_profile("suite")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each worker begin with tests that take long: begun last, one would keep the others waiting.

    Those are the modules that were given a time limit of their own.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        modules = [list(found) for _, found in itertools.groupby(items, lambda item: item.path)]
        items[:] = ordered_for(
            [module for module in modules if any(item.get_closest_marker("timeout") for item in module)],
            [module for module in modules if not any(item.get_closest_marker("timeout") for item in module)],
            workers,
        )
