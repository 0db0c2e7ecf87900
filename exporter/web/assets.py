"""The pages' style sheets, JavaScript modules and icon, served under names with a content hash."""

import gzip
import re
from hashlib import blake2s
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web
from msgspec import Struct

from exporter.web.answers import wants_gzip

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


_IMPORT: Final = re.compile(rb'(?<=from "\./)[a-z]+\.js(?=";)')
"""A module's import of another module."""


class Asset(Struct, frozen=True):
    """One file, in memory."""

    address: str
    content_type: str
    plain: bytes
    gzipped: bytes


class Assets:
    """Every file of the folder `static`."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        found: dict[str, Asset] = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in _TYPES:
                _read(path, found)
        self._by_name = found
        self._by_address = {asset.address: asset for asset in found.values()}

    def address(self, name: str) -> str:
        """The address of the file `name`. Raises KeyError for an unknown name."""
        return self.named(name).address

    def named(self, name: str) -> Asset:
        """The file `name`. Raises KeyError for an unknown name."""
        return self._by_name[name]

    async def serve(self, request: web.Request) -> web.Response:
        """The file of an address; caches keep it for ever, because its content never changes."""
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


def _read(path: Path, found: dict[str, Asset]) -> Asset:
    """Read the file at `path`, and the modules that it imports, into `found`."""
    if path.name in found:
        return found[path.name]

    def named(imported: re.Match[bytes]) -> bytes:
        # Imports have no cycles: a name contains the hash of the content, which contains the imports' names.
        return Path(_read(path.with_name(imported[0].decode()), found).address).name.encode()

    content = _IMPORT.sub(named, path.read_bytes()) if path.suffix == ".js" else path.read_bytes()
    digest = blake2s(content, digest_size=6).hexdigest()
    address = f"/static/{path.stem}.{digest}{path.suffix}"
    found[path.name] = Asset(address, _TYPES[path.suffix], content, gzip.compress(content, 9, mtime=0))
    return found[path.name]
