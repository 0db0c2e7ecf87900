"""Checks of names and paths as the kubelet, Linux and container runtimes take them, and natural sort order.

Each check returns None for a valid text, otherwise the rest of a message that begins with "found '…', ".
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

Check = Callable[[str], str | None]

MAX_ID_BYTES: Final = 512
"""The longest advertised device id. The kubelet has no limit, but its checkpoint and List grow."""

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CDI_KIND: Final = r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?/[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_CDI_DEVICE: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?"


def matching(pattern: str, expected: str, longest: int = 4096) -> Check:
    """A check for texts of at most `longest` characters that match `pattern` as a whole."""
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: None if len(text) <= longest and compiled.fullmatch(text) else f"expected {expected}"


def resource_problem(name: str) -> str | None:
    """Check the name of an extended resource.

    kubelet: IsExtendedResourceName. Quotas put `requests.` before the name, so this prefix is forbidden and
    its nine characters count against the 253 of a domain.
    """
    domain, slash, rest = name.partition("/")
    longest = 253 - len("requests.")
    rules = (
        (slash and "/" not in rest, "expected DOMAIN/NAME with one slash"),
        ("kubernetes.io/" not in name, "expected a domain of your own: kubernetes.io is Kubernetes' own"),
        (
            not domain.startswith("requests."),
            "expected a domain without the prefix 'requests.', which quotas use",
        ),
        (
            _SUBDOMAIN.fullmatch(domain),
            "expected a domain of lower-case letters, digits, '-' and '.' before the slash",
        ),
        (len(domain) <= longest, f"expected a domain of at most {longest} characters"),
        (len(rest) <= 63, "expected at most 63 characters after the slash"),
        (
            _NAME_PART.fullmatch(rest),
            "expected letters, digits, '-', '_' and '.' after the slash, a letter or digit at both ends",
        ),
    )
    return next((problem for holds, problem in rules if not holds), None)


def id_problem(text: str) -> str | None:
    """Check a device id.

    kubelet: an id that is not valid UTF-8 ends the endpoint. Control characters are refused because ids are
    used in environment variables, paths and CDI names.
    """
    if not text:
        return "it is empty"
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if length > MAX_ID_BYTES:
        return f"it is {length} bytes long, at most {MAX_ID_BYTES} work"
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text):
        return "it has control characters"
    return None


cdi_problem: Final = matching(f"{_CDI_KIND}={_CDI_DEVICE}", "a CDI name such as vendor.example/class=device")
"""Check a fully qualified CDI device name, by the CDI specification."""
cdi_kind_problem: Final = matching(_CDI_KIND, "a CDI kind such as vendor.example/class")
cdi_device_problem: Final = matching(
    _CDI_DEVICE, "letters, digits, '-', '_', '.' and ':', a letter or digit at both ends"
)
url_problem: Final = matching(
    r"https?://[^\s/?#@]+(?:[/?#]\S*)?", "an address such as http://127.0.0.1:8080/healthz"
)
variable_problem: Final = matching(
    r"[A-Za-z_][-A-Za-z0-9_.]*", "a variable's name: letters, digits, '_', '-' and '.', no digit first", 256
)
"""Check the name of a container's environment variable."""
attribute_problem: Final = matching(
    r"[a-z][a-z0-9_]*", "a name such as model: a-z, 0-9 and '_', a letter first", 63
)
"""Check the name of a device attribute."""
permissions_problem: Final = matching(r"(?!.*(.).*\1)[rwm]{1,3}", "some of r (read), w (write), m (mknod)")
"""Check the permissions of a device node."""


def interface_problem(name: str) -> str | None:
    """Check the name of a network interface. Linux: dev_valid_name."""
    length = len(name.encode(errors="replace"))
    if 0 < length <= 15 and name not in {".", ".."} and not re.search(r"[/:\s]", name):
        return None
    return "expected a network interface's name: 1 to 15 characters without '/', ':' and white space"


def path_problem(text: str) -> str | None:
    """Check an absolute path."""
    if not text.startswith("/"):
        return "expected an absolute path"
    if "\0" in text or len(text) > 4095:
        return "expected a path of at most 4095 characters without NUL"
    if ".." in text.split("/"):
        return "expected a path without '..'"
    return None


def top_level(path: str) -> str:
    """The top-level directory of an absolute path: `/dev` of `/dev/kfd`."""
    return "/" + path.lstrip("/").partition("/")[0]


def glob_problem(pattern: str) -> str | None:
    """Check a glob of absolute paths."""
    if "**" in pattern:
        return "expected a pattern without '**': each '*' stands for one component"
    if not pattern.strip("/"):
        return "expected a pattern such as /dev/video*"
    return path_problem(pattern)


def container_path_problem(text: str) -> str | None:
    """Check the path of a mount, a file or a device node in a container."""
    problem = path_problem(text)
    if problem is None and not text.strip("/."):
        return "expected a path below '/'"
    return problem


def annotation_problem(key: str) -> str | None:
    """Check the key of an annotation."""
    prefix, slash, name = key.rpartition("/")
    fits = len(name) <= 63 and _NAME_PART.fullmatch(name)
    if fits and (not slash or (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix))):
        return None
    return "expected an annotation's key: NAME or DOMAIN/NAME"


_NUMBER: Final = re.compile(r"(\d{1,18})", re.ASCII)
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
"""A PCI address: hexadecimal and of fixed width, so that plain text order puts 19 before 3b."""
_MAX_CACHED: Final = 128
"""Characters of a text whose key is cached."""


NaturalKey = tuple[str | int, ...]
"""A sort key: texts and numbers in turn."""


def natural(text: str) -> NaturalKey:
    """A sort key that puts `video2` before `video10`. Keys of short texts are cached."""
    return _cached_key(text) if len(text) <= _MAX_CACHED else _key(text)


def in_order(texts: Iterable[str]) -> list[str]:
    """`texts` in natural order. The key of a single one is not made."""
    found = list(texts)
    if len(found) > 1:
        found.sort(key=natural)
    return found


def _key(text: str) -> NaturalKey:
    if _ADDRESS.fullmatch(text) is not None:
        return (text, -1)
    parts: list[str | int] = [*_NUMBER.split(text), -1, text]
    parts[1:-3:2] = map(int, parts[1:-3:2])
    return tuple(parts)


_cached_key = lru_cache(maxsize=4096)(_key)
