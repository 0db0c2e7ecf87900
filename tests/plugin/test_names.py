import pytest

from plugin import names

GOOD = [
    *((names.resource_problem, text) for text in ("example.com/camera", "a/b", "rdma/hca_shared-1.x")),
    *((names.resource_problem, text) for text in ("x--y.z/A", "a" * 244 + "/x")),
    *((names.id_problem, text) for text in ("a", "0000:3b:00.0", "nvidia0/gi1", "GPU-1::3", "é", "x" * 512)),
    *((names.cdi_problem, text) for text in ("vendor.com/class=device", "nvidia.com/gpu=GPU-1:0", "v/c=0")),
    *((names.permissions_problem, text) for text in ("r", "mrw")),
    *((names.annotation_problem, text) for text in ("a", "a.com/b")),
    (names.path_problem, "/a"),
]
BAD = [
    *((names.id_problem, text) for text in ("", "\udc80", "a\nb", "\x7f", "\x85", "x" * 513, "é" * 257)),
    *((names.cdi_problem, text) for text in ("", "v/c", "v=c", "/c=d", "v/=d", "v/c=", "1v/c=d", "v/c=d e")),
    *((names.cdi_problem, text) for text in ("v/c=-d", "v/c=/dev/x")),
    *((names.permissions_problem, text) for text in ("", "rr", "x")),
    *((names.annotation_problem, text) for text in ("a.com/", "A.com/b", "a b", "x" * 64)),
    *((names.path_problem, text) for text in ("a", "/a/../b", "/a\0")),
]


@pytest.mark.parametrize(("check", "text"), GOOD)
def test_valid_names(check: names.Check, text: str) -> None:
    assert check(text) is None


@pytest.mark.parametrize(("check", "text"), BAD)
def test_invalid_names(check: names.Check, text: str) -> None:
    assert check(text) is not None
