"""runtime.blocks: documents in blocks equal those made whole, and a change makes few blocks anew."""

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.blocks import CHUNK, EMPTY, Block, BlockCache, block, gzipped, joined, plain, stored

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
TEXTS = st.lists(st.binary(max_size=400), max_size=8)


@QUICK
@given(TEXTS)
def test_blocks_make_one_gzip_member_of_the_whole_text(texts: list[bytes]) -> None:
    blocks = [block(text) for text in texts]
    member = zlib.decompressobj(16 + zlib.MAX_WBITS)
    # The decompressor checks the trailer's checksum and size.
    assert member.decompress(gzipped(blocks)) == b"".join(texts) == plain(blocks)
    assert member.eof
    assert not member.unused_data


@QUICK
@given(TEXTS, st.integers(0, 8))
def test_joined_blocks_are_a_block(texts: list[bytes], at: int) -> None:
    blocks = [block(text) for text in texts]
    twice = [joined(blocks[:at]), joined(blocks[at:])]
    assert gzipped(twice) == gzipped(blocks)
    assert plain(twice) == plain(blocks)
    whole = joined(twice)
    assert (whole.crc, whole.size) == (zlib.crc32(b"".join(texts)), sum(map(len, texts)))


@pytest.mark.parametrize("size", [0, 1, 1000, 0xFFFF, 0x10000])
def test_stored_blocks_are_blocks(size: int) -> None:
    text = b"a" * size
    assert (
        gzip.decompress(gzipped([block(b"head"), stored(text), block(b"tail")])) == b"head" + text + b"tail"
    )
    assert stored(text).without_text().text == text


@pytest.mark.parametrize("size", [1, 255, 65536, 1_000_003])
def test_sizes(size: int) -> None:
    text = bytes(number % 251 for number in range(size))
    assert gzip.decompress(gzipped([block(b"head"), block(text), block(b"tail")])) == b"head" + text + b"tail"


def test_the_text_need_not_be_kept() -> None:
    without = block(b"text" * 100).without_text()
    assert without.kept is None
    assert without.text == b"text" * 100
    assert joined([without, block(b"more")]).kept is None
    assert EMPTY.without_text().text == b""


class _Written:
    """A writer that counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, items: object) -> bytes:
        self.calls += 1
        assert isinstance(items, tuple)
        return b"".join([b"%d\n" % number for (number,) in items])


class TestBlockCache:
    def test_a_changed_item_makes_one_block_anew(self) -> None:
        write = _Written()
        cache = BlockCache[tuple[int]](write)
        items = tuple([(number,) for number in range(10 * CHUNK)])
        before = cache.of([("a", items), ("b", items[:3])])
        assert write.calls == 11
        changed = (*items[:100], (7,), *items[101:])
        after = cache.of([("a", changed), ("b", items[:3])])
        assert write.calls == 12
        assert [one is other for one, other in zip(before, after, strict=True)].count(False) == 1
        assert plain(after) == b"".join([b"%d\n" % number for (number,) in (*changed, *items[:3])])

    def test_an_equal_item_that_is_another_object_is_another_item(self) -> None:
        write = _Written()
        cache = BlockCache[tuple[int]](write)
        cache.of([("a", ((1000,),))])
        cache.of([("a", ((len(b"x" * 1000),),))])
        assert write.calls == 2

    def test_a_group_moves_no_item_of_another(self) -> None:
        write = _Written()
        cache = BlockCache[tuple[int]](write, size=2)
        first, second = ((1,), (2,)), ((3,), (4,))
        cache.of([("a", first), ("b", second)])
        calls = write.calls
        assert plain(cache.of([("a", (*first, (5,))), ("b", second)])) == b"1\n2\n5\n3\n4\n"
        assert write.calls == calls + 1

    def test_the_text_of_many_items_is_not_kept(self) -> None:
        items = tuple([(number,) for number in range(1000)])
        small = BlockCache[tuple[int]](_Written(), size=10, keep_text=100)
        blocks, whole = small.of([("", items)]), BlockCache[tuple[int]](_Written(), size=10).of([("", items)])
        assert 0 < sum(one.size for one in blocks if one.kept is not None) <= 100
        assert plain(blocks) == plain(whole)
        assert gzipped(blocks) == gzipped(whole)
        assert all(one is other for one, other in zip(small.of([("", items)]), blocks, strict=True))

    def test_what_is_gone_is_forgotten(self) -> None:
        write = _Written()
        cache = BlockCache[tuple[int]](write)
        items = ((1,),)
        cache.of([("a", items)])
        assert cache.of([]) == list[Block]()
        cache.of([("a", items)])
        cache.clear()
        cache.of([("a", items)])
        assert write.calls == 3
