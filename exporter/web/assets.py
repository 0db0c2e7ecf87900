"""The page's own files: its style, its module, its icon. Named by their content, kept for ever."""

import gzip
from dataclasses import dataclass
from hashlib import blake2s
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from exporter.web.answers import wants_gzip

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, read once."""

    address: str
    content_type: str
    plain: bytes
    gzipped: bytes


class Assets:
    """Every file of the folder `static`."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        found = {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES}
        self._by_name = found
        self._by_address = {asset.address: asset for asset in found.values()}

    def address(self, name: str) -> str:
        """Where the file `name` is served. Raises KeyError if there is none."""
        return self._by_name[name].address

    async def serve(self, request: web.Request) -> web.Response:
        """The file of an address, which is never another one under the same address."""
        asset = self._by_address.get(request.path)
        if asset is None:
            raise web.HTTPNotFound
        gzipped = wants_gzip(request)
        response = web.Response(
            body=asset.gzipped if gzipped else asset.plain, headers={hdrs.CONTENT_TYPE: asset.content_type}
        )
        response.headers[hdrs.CACHE_CONTROL] = "public, max-age=31536000, immutable"
        response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
        if gzipped:
            response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        return response


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    digest = blake2s(content, digest_size=6).hexdigest()
    address = f"/static/{path.stem}.{digest}{path.suffix}"
    return Asset(address, _TYPES[path.suffix], content, gzip.compress(content, 9, mtime=0))
