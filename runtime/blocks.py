"""Large documents in blocks, so that a small change writes and compresses a small part.

A block is a piece of text with its compressed form. The compressed forms of several blocks, one after the
other, are one compressed document: each ends on a byte boundary and refers to no other (zlib's Z_FULL_FLUSH).
The checksum of the document follows from those of its blocks by arithmetic, without the text.

Formats: RFC 1951 (deflate) and RFC 1952 (gzip). CRC-32: its polynomial arithmetic is that of zlib's
crc32_combine.
"""

import math
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from operator import is_
from typing import Final, Generic, TypeVar

from msgspec import Struct

LEVEL: Final = 1
"""zlib's fastest level: text of metrics and JSON still shrinks to a tenth."""
CHUNK: Final = 64
"""Items of a block: a changed item costs the writing and compressing of so many."""

_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST: Final = b"\x03\x00"
"""An empty last block of deflate."""

_MOST_STORED: Final = 0xFFFF
"""Bytes of a stored block of deflate."""
_READ_AGAIN: Final = 16 * 1024
"""Bytes of text up to which its checksum is made again sooner than combined."""

_POLYNOMIAL: Final = 0xEDB88320
"""CRC-32, reflected: the highest bit is the lowest power."""
_ONE: Final = 1 << 31


def _by_x(a: int) -> int:
    """The product of a polynomial and x."""
    return a >> 1 ^ _POLYNOMIAL if a & 1 else a >> 1


def _by_x4(a: int) -> int:
    return _by_x(_by_x(_by_x(_by_x(a))))


_BY_X4: Final = tuple([_by_x4(low) for low in range(16)])
"""What the lowest four bits of a polynomial become when it is multiplied by the fourth power of x."""


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo CRC-32's, by four bits of `a` at a time."""
    if a == _ONE:
        return b
    b1 = _by_x(b)
    b2 = _by_x(b1)
    b3 = _by_x(b2)
    low = (0, b3, b2, b2 ^ b3, b1, b1 ^ b3, b1 ^ b2, b1 ^ b2 ^ b3)
    multiples = (*low, *[b ^ one for one in low])
    product = 0
    for at in range(0, 32, 4):
        product = product >> 4 ^ _BY_X4[product & 15] ^ multiples[a >> at & 15]
    return product


def _powers() -> tuple[int, ...]:
    """Powers 8, 16, 32, … of x: what moves a checksum over 1, 2, 4, … bytes."""
    found = [_ONE >> 8]
    while len(found) < 40:
        found.append(_times(found[-1], found[-1]))
    return tuple(found)


_POWERS: Final = _powers()


@lru_cache(maxsize=4096)
def _shift(size: int) -> int:
    """What moves a checksum over `size` bytes: x to the power 8 * size."""
    product = _ONE
    for power in _POWERS:
        if not size:
            break
        if size & 1:
            product = _times(power, product)
        size >>= 1
    return product


class Block(Struct, frozen=True):
    """A piece of a document: `size` bytes of text, deflated up to a byte boundary, and their CRC-32.

    `kept` is the text, None where only the compressed form is kept.
    """

    deflated: bytes
    crc: int
    size: int
    kept: bytes | None

    @property
    def text(self) -> bytes:
        """The text, decompressed where it is not kept."""
        return zlib.decompress(self.deflated + _LAST, -zlib.MAX_WBITS) if self.kept is None else self.kept

    def without_text(self) -> "Block":
        """The same block without its text, for documents that are too large to be kept twice."""
        return Block(self.deflated, self.crc, self.size, None)


EMPTY: Final = Block(b"", 0, 0, b"")


def block(text: bytes) -> Block:
    """Compress `text`. May run in a thread: zlib releases the interpreter for all but small texts."""
    if not text:
        return EMPTY
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)
    return Block(deflated, zlib.crc32(text), len(text), text)


def stored(text: bytes) -> Block:
    """`text` as it is: the quickest form for a few hundred bytes."""
    size = len(text)
    if not 0 < size <= _MOST_STORED:
        return block(text)
    return Block(struct.pack("<BHH", 0, size, size ^ _MOST_STORED) + text, zlib.crc32(text), size, text)


def joined(blocks: Iterable[Block]) -> Block:
    """One block of several, without their text."""
    parts = tuple(blocks)
    crc, size = _checked(parts)
    return Block(b"".join([part.deflated for part in parts]), crc, size, None)


def _checked(parts: Iterable[Block]) -> tuple[int, int]:
    """The checksum and the size of the whole text."""
    crc, size = 0, 0
    for part in parts:
        if part.kept is not None and part.size < _READ_AGAIN:
            crc = zlib.crc32(part.kept, crc)
        else:
            crc = _times(_shift(part.size), crc) ^ part.crc
        size += part.size
    return crc, size


def gzip_pieces(blocks: Iterable[Block]) -> tuple[bytes, ...]:
    """The document as one gzip member, in pieces: those of the blocks are not copied."""
    parts = tuple(blocks)
    crc, size = _checked(parts)
    trailer = struct.pack("<II", crc, size & 0xFFFFFFFF)
    return (_GZIP_HEADER, *[part.deflated for part in parts], _LAST + trailer)


def gzipped(blocks: Iterable[Block]) -> bytes:
    """The document as one gzip member; equal for equal blocks."""
    return b"".join(gzip_pieces(blocks))


def plain(blocks: Iterable[Block]) -> bytes:
    """The document's text."""
    return b"".join([part.text for part in blocks])


T = TypeVar("T")


def runs(
    items: Sequence[T], key: Callable[[T], tuple[str, ...]], size: int
) -> list[tuple[tuple[str, ...], Sequence[T]]]:
    """`items`, which are sorted by `key`, in runs of about `size` keys, each named by its first key: the
    groups of a BlockCache. The keys alone decide where a run begins: a key more or less changes one run, and
    moves no item of another.
    """
    keys = [key(item) for item in items]
    starts = [at for at, one in enumerate(keys) if not at or (one != keys[at - 1] and _begins(one, size))]
    return [(keys[at], items[at:end]) for at, end in zip(starts, [*starts[1:], len(items)], strict=False)]


def _begins(key: tuple[str, ...], size: int) -> bool:
    return not zlib.crc32("/".join(key).encode(errors="surrogatepass")) % size


class BlockCache(Generic[T]):
    """The blocks of a list of items, each kept while its items are the same objects or its text stays."""

    def __init__(
        self, write: Callable[[Sequence[T]], bytes], size: int = CHUNK, *, keep_text: float = math.inf
    ) -> None:
        """`write` returns the text of some items, `size` is the number of items of a block. Blocks after the
        first `keep_text` bytes of text keep their compressed form only.
        """
        self._write = write
        self._size = size
        self._keep_text = keep_text
        self._kept: dict[tuple[Hashable, int], tuple[Sequence[T], Block]] = {}

    def of(self, groups: Iterable[tuple[Hashable, Sequence[T]]]) -> list[Block]:
        """The blocks of all groups. A group begins a block of its own: an item more in one group moves no
        item of another. `groups` are names, each once, with the items.
        """
        before, kept = self._kept, dict[tuple[Hashable, int], tuple[Sequence[T], Block]]()
        length = 0
        for name, items in groups:
            for at in range(0, len(items), self._size):
                some = items[at : at + self._size]
                found = before.get((name, at))
                if found is None or len(found[0]) != len(some) or not all(map(is_, found[0], some)):
                    text = self._write(some)
                    same = found is not None and found[1].kept == text
                    found = (some, found[1] if found is not None and same else block(text))
                length += found[1].size
                if length > self._keep_text and found[1].kept is not None:
                    found = (found[0], found[1].without_text())
                kept[name, at] = found
        self._kept = kept
        return [found for _, found in kept.values()]

    def clear(self) -> None:
        """Forget every block."""
        self._kept = {}
