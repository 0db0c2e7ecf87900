import pytest

from devicelens import version
from runtime import __version__


@pytest.mark.parametrize("revision", ["0123abc", "a" * 40, "a" * 40 + "-dirty"])
def test_an_image_s_revision_is_told_with_the_version(revision: str) -> None:
    assert version({"DEVICELENS_REVISION": revision}) == f"{__version__} (revision {revision})"


@pytest.mark.parametrize("revision", ["", "main", "\x1b[31m0123abc", "abc\n", "A" * 40])
def test_what_is_no_revision_is_not_told(revision: str) -> None:
    assert version({"DEVICELENS_REVISION": revision}) == __version__
    assert version({}) == __version__
