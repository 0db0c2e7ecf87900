"""The pages' own files: their style, their modules, their icon. Named by their content, kept for ever."""

import gzip
import re
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


_IMPORT: Final = re.compile(rb'(?<=from "\./)[a-z]+\.js(?=";)')
"""How one module imports another one."""


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
        found: dict[str, Asset] = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in _TYPES:
                _read(path, found)
        self._by_name = found
        self._by_address = {asset.address: asset for asset in found.values()}

    def address(self, name: str) -> str:
        """Where the file `name` is served. Raises KeyError if there is none."""
        return self.named(name).address

    def named(self, name: str) -> Asset:
        """The file `name`. Raises KeyError if there is none."""
        return self._by_name[name]

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


def _read(path: Path, found: dict[str, Asset]) -> Asset:
    """The file at `path`, put into `found` with those that it imports: it names them by their content too."""
    if path.name in found:
        return found[path.name]

    def named(imported: re.Match[bytes]) -> bytes:
        # Modules import one another in one direction: a circle would have no names.
        return Path(_read(path.with_name(imported[0].decode()), found).address).name.encode()

    content = _IMPORT.sub(named, path.read_bytes()) if path.suffix == ".js" else path.read_bytes()
    digest = blake2s(content, digest_size=6).hexdigest()
    address = f"/static/{path.stem}.{digest}{path.suffix}"
    found[path.name] = Asset(address, _TYPES[path.suffix], content, gzip.compress(content, 9, mtime=0))
    return found[path.name]
