"""The pages' addresses, written and read: of a device, a pod, a claimed device, and the past. Pure.

    /devices/{resource}/{id}            the resource's own "/" stays: /devices/nvidia.com/gpu/GPU-1
    /pods/{namespace}/{name}
    /claims/{driver}/{pool}/{device}
    /history?resource=&device=&namespace=&pod=&from=&to=&at=&limit=&cursor=

A name is one segment, percent-encoded: a "/" in it is %2F. What no segment can be (nothing, "." and "..",
which browsers resolve even as %2E) is written behind a "~", and so is what begins with a "~" itself.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlencode

from exporter.views.query import TEXT_LIMIT, Filters, address
from exporter.views.wording import spelled

ADDRESS_LIMIT: Final = 8000
"""Characters of an address that this server, and proxies before it, take."""

_DEVICES, _PODS, _CLAIMS, _HISTORY = "/devices", "/pods", "/claims", "/history"


class LinkError(ValueError):
    """A path that none of these functions writes: what was found, what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        self.found = spelled(found[:200])
        self.expected = expected
        super().__init__(f"found {self.found!r}, expected {expected}")


def device_link(resource: str, device: str) -> str:
    """The page of one device. A name too long for any address leads to the rows that its beginning finds."""
    path = _path(_DEVICES, (*resource.split("/"), device))
    if len(path) <= ADDRESS_LIMIT:
        return path
    return address(Filters(resource=_part(resource), device=_part(device)))


def pod_link(namespace: str, pod: str) -> str:
    """The page of one pod; as device_link for what is too long."""
    path = _path(_PODS, (namespace, pod))
    if len(path) <= ADDRESS_LIMIT:
        return path
    return address(Filters(namespace=_part(namespace), pod=_part(pod)))


def claim_link(driver: str, pool: str, device: str) -> str:
    """The page of one claimed device; as device_link for what is too long."""
    path = _path(_CLAIMS, (driver, pool, device))
    return path if len(path) <= ADDRESS_LIMIT else address(Filters(q=_part(device)))


def history_link(
    *,
    resource: str = "",
    device: str = "",
    namespace: str = "",
    pod: str = "",
    since: str = "",
    until: str = "",
    at: str = "",
    limit: int = 0,
    cursor: str = "",
) -> str:
    """The past, of what is asked for alone; `since` is the address's `from`, `until` its `to`. "" and 0 ask
    for nothing.
    """
    asked = {
        "resource": resource,
        "device": device,
        "namespace": namespace,
        "pod": pod,
        "from": since,
        "to": until,
        "at": at,
        "limit": str(limit or ""),
        "cursor": cursor,
    }
    pairs = {name: value for name, value in asked.items() if value}
    return f"{_HISTORY}?{urlencode(pairs, errors='replace')}" if pairs else _HISTORY


def read_device(raw_path: str) -> tuple[str, str]:
    """The resource and the id in the path of a device's page, as it came, still encoded. Raises LinkError."""
    found = _read(raw_path, _DEVICES)
    if len(found) < 2:
        raise LinkError(raw_path, f"{_DEVICES}/RESOURCE/ID")
    return "/".join(found[:-1]), found[-1]


def read_pod(raw_path: str) -> tuple[str, str]:
    """The namespace and the name in the path of a pod's page, still encoded. Raises LinkError."""
    found = _read(raw_path, _PODS)
    if len(found) != 2:
        raise LinkError(raw_path, f"{_PODS}/NAMESPACE/NAME")
    return found[0], found[1]


def read_claim(raw_path: str) -> tuple[str, str, str]:
    """The driver, the pool and the device in the path of a claimed device's page, still encoded.

    Raises LinkError.
    """
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
    # "%7E" is the "~" that a client encoded although it need not.
    try:
        name = unquote_to_bytes(segment).decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise LinkError(raw_path, "percent-encoded UTF-8") from None
    if not name:
        raise LinkError(raw_path, "a name between each two slashes")
    return name.removeprefix("~")


def _part(name: str) -> str:
    """What a filter takes of a name: as much as a query may have, as it is shown."""
    return spelled(name)[:TEXT_LIMIT]
