"""What holds for all tests: how hypothesis looks for examples, and that what takes long begins first."""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")

# Whoever reaches the world by a proxy has none between this machine and itself.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "localhost,127.0.0.1,::1")))

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
        items[:] = dealt(
            [module for module in modules if any(item.get_closest_marker("timeout") for item in module)],
            [module for module in modules if not any(item.get_closest_marker("timeout") for item in module)],
            workers,
        )


def dealt(first: Iterable[Sequence[T]], then: Iterable[Sequence[T]], workers: int) -> list[T]:
    """All items, so that each of `workers` equal parts of the list begins with some of the `first`.

    xdist: with worksteal each worker begins with such a part.
    """
    hands: list[list[T]] = [[] for _ in range(workers)]
    for group in first:
        min(hands, key=len).extend(group)
    rest = [item for group in then for item in group]
    left = sum(map(len, hands)) + len(rest)
    order: list[T] = []
    for number, hand in enumerate(hands):
        share = max(len(hand), left // (workers - number))
        taken = share - len(hand)
        order += [*hand, *rest[:taken]]
        rest = rest[taken:]
        left -= share
    return [*order, *rest]
