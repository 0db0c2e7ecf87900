"""The pages' addresses, written and parsed. Pure.

/devices/{resource}/{id}            the resource's own "/" stays: /devices/nvidia.com/gpu/GPU-1
/pods/{namespace}/{name} /claims/{driver}/{pool}/{device}
/history?resource=&device=&namespace=&pod=&from=&to=&at=&limit=&cursor=

A name is one percent-encoded segment: a "/" in it is %2F. A name that no segment can be ("", "." and "..",
which browsers resolve even as %2E) has a "~" before it, and so has a name that begins with "~".
"""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlencode

from exporter.views.query import TEXT_LIMIT, Filters, address
from exporter.views.wording import spelled

ADDRESS_LIMIT: Final = 8000
"""Characters of an address that this server and proxies accept."""

_DEVICES, _PODS, _CLAIMS, _HISTORY = "/devices", "/pods", "/claims", "/history"


class LinkError(ValueError):
    """An invalid path: what was found, and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = spelled(found[:200])
        self.expected = expected
        super().__init__(f"found {self.found!r}, expected {expected}")


def device_link(resource: str, device: str) -> str:
    """The page of one device. For a name too long for an address: the rows that match its beginning."""
    path = _path(_DEVICES, (*resource.split("/"), device))
    if len(path) <= ADDRESS_LIMIT:
        return path
    return address(Filters(resource=_part(resource), device=_part(device)))


def pod_link(namespace: str, pod: str) -> str:
    """The page of one pod; for long names as device_link."""
    path = _path(_PODS, (namespace, pod))
    if len(path) <= ADDRESS_LIMIT:
        return path
    return address(Filters(namespace=_part(namespace), pod=_part(pod)))


def claim_link(driver: str, pool: str, device: str) -> str:
    """The page of one claimed device; for long names as device_link."""
    path = _path(_CLAIMS, (driver, pool, device))
    return path if len(path) <= ADDRESS_LIMIT else address(Filters(q=_part(device)))


def history_link(parameters: Mapping[str, str] | None = None) -> str:
    """The history page with these `parameters`; "" leaves one out."""
    pairs = {name: value for name, value in (parameters or {}).items() if value}
    return f"{_HISTORY}?{urlencode(pairs, errors='replace')}" if pairs else _HISTORY


def read_device(raw_path: str) -> tuple[str, str]:
    """The resource and the id in the encoded path of a device's page. Raises LinkError."""
    found = _read(raw_path, _DEVICES)
    if len(found) < 2:
        raise LinkError(raw_path, f"{_DEVICES}/RESOURCE/ID")
    return "/".join(found[:-1]), found[-1]


def read_pod(raw_path: str) -> tuple[str, str]:
    """The namespace and the name in the encoded path of a pod's page. Raises LinkError."""
    found = _read(raw_path, _PODS)
    if len(found) != 2:
        raise LinkError(raw_path, f"{_PODS}/NAMESPACE/NAME")
    return found[0], found[1]


def read_claim(raw_path: str) -> tuple[str, str, str]:
    """The driver, pool and device in the encoded path of a claimed device's page. Raises LinkError."""
    found = _read(raw_path, _CLAIMS)
    if len(found) != 3:
        raise LinkError(raw_path, f"{_CLAIMS}/DRIVER/POOL/DEVICE")
    return found[0], found[1], found[2]


def _path(root: str, names: Iterable[str]) -> str:
    return "/".join((root, *map(_segment, names)))


def _segment(name: str) -> str:
    escape = "~" if name in {"", ".", ".."} or name.startswith("~") else ""
    return escape + quote(name, safe="", errors="surrogatepass")


def _read(raw_path: str, root: str) -> list[str]:
    if not raw_path.startswith(f"{root}/"):
        raise LinkError(raw_path, f"a path below {root}/")
    return [_name(segment, raw_path) for segment in raw_path.removeprefix(f"{root}/").split("/")]


def _name(segment: str, raw_path: str) -> str:
    # Some clients encode "~" as "%7E".
    try:
        name = unquote_to_bytes(segment).decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise LinkError(raw_path, "percent-encoded UTF-8") from None
    if not name:
        raise LinkError(raw_path, "a name between each two slashes")
    return name.removeprefix("~")


def _part(name: str) -> str:
    """A name as a filter's value: as it is shown, cut to the limit of a query."""
    return spelled(name)[:TEXT_LIMIT]
