"""simulator.demo: where it lies."""

from pathlib import Path

import pytest

from plugin.serving.sockets import SocketNames
from runtime.process import Fatal
from simulator.demo import own_directory


def longer(root: Path, length: int) -> Path:
    directory = root / ("x" * (length - len(bytes(root)) - 1))
    directory.mkdir()
    return directory


def test_it_lies_in_the_first_directory_that_leaves_room_for_a_plugin_s_sockets(root: Path) -> None:
    fits, does_not = longer(root, 27), longer(root, 28)
    assert own_directory(does_not, fits, root).parent == fits
    made = own_directory(fits)
    names = SocketNames(made / "kubelet" / "device-plugins", "example.com/camera", lambda: "01234567")
    assert len(bytes(names.fresh())) <= 107
    with pytest.raises(ValueError, match="expected a path of at most"):
        SocketNames(does_not / made.name / "kubelet" / "device-plugins", "example.com/camera", str)


def test_where_there_is_no_such_directory_it_says_why_of_each_and_what_to_do(root: Path) -> None:
    does_not, gone = longer(root, 60), root / "gone"
    with pytest.raises(Fatal) as raised:
        own_directory(does_not, gone, gone)
    assert str(raised.value) == (
        f"no directory for the demo, set TMPDIR: {does_not} is longer than 27 bytes, which leaves no room "
        f"for sockets' paths; {gone}: No such file or directory"
    )
