import pytest

from plugin import names


@pytest.mark.parametrize(
    "name", ["example.com/camera", "a/b", "rdma/hca_shared-1.x", "x--y.z/A", "a" * 244 + "/x"]
)
def test_resource_names_that_the_kubelet_takes(name: str) -> None:
    assert names.resource_problem(name) is None


@pytest.mark.parametrize("text", ["a", "0000:3b:00.0", "nvidia0/gi1", "GPU-1::3", "é", "a b", "x" * 512])
def test_ids_that_may_be(text: str) -> None:
    assert names.id_problem(text) is None


@pytest.mark.parametrize("text", ["", "\udc80", "a\nb", "\x7f", "\x85", "x" * 513, "é" * 257])
def test_ids_that_may_not_be(text: str) -> None:
    assert names.id_problem(text) is not None


@pytest.mark.parametrize("name", ["vendor.com/class=device", "nvidia.com/gpu=GPU-1:0", "v/c=0"])
def test_cdi_names_that_runtimes_take(name: str) -> None:
    assert names.cdi_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "v/c", "v=c", "/c=d", "v/=d", "v/c=", "1v/c=d", "v/c=d e", "v/c=-d", "v/c=/dev/x"]
)
def test_cdi_names_that_runtimes_refuse(name: str) -> None:
    assert names.cdi_problem(name) is not None


@pytest.mark.parametrize(
    ("text", "fits"), [("r", True), ("mrw", True), ("", False), ("rr", False), ("x", False)]
)
def test_permissions_are_some_of_r_w_m(text: str, *, fits: bool) -> None:
    assert (names.permissions_problem(text) is None) is fits


@pytest.mark.parametrize(
    ("key", "fits"),
    [
        ("a", True),
        ("a.com/b", True),
        ("a.com/", False),
        ("A.com/b", False),
        ("a b", False),
        ("x" * 64, False),
    ],
)
def test_annotation_keys_are_those_of_kubernetes(key: str, *, fits: bool) -> None:
    assert (names.annotation_problem(key) is None) is fits


@pytest.mark.parametrize(("path", "fits"), [("/a", True), ("a", False), ("/a/../b", False), ("/a\0", False)])
def test_paths_are_absolute_and_plain(path: str, *, fits: bool) -> None:
    assert (names.path_problem(path) is None) is fits
