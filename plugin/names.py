"""Names as the kubelet takes them: resource names, device ids, CDI names, environment variables."""

import re
from functools import lru_cache
from typing import Final

MAX_ID_BYTES: Final = 512
"""The longest device id that is advertised; the kubelet knows no limit, its checkpoint and our list do."""

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CDI_CLASS: Final = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CDI_VENDOR: Final = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CDI_DEVICE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?")
_NO_INTERFACE: Final = re.compile(r"[/:\s]")
_URL: Final = re.compile(r"https?://[^\s/?#@]+(?:[/?#]\S*)?")
_ATTRIBUTE: Final = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9_.]*")


def resource_problem(name: str) -> str | None:
    """What makes `name` unfit for an extended resource, in words; None where it is fit.

    kubelet: IsExtendedResourceName. A pod's quota prefixes it with `requests.`, so that this prefix
    is forbidden and its nine characters count against a domain's 253.
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
    """What makes `text` unfit for a device id, in words; None where it is fit.

    kubelet: an id that is not valid UTF-8 ends the endpoint. Control characters are refused because
    ids go on into environment variables, paths and CDI names.
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


def cdi_problem(name: str) -> str | None:
    """What makes `name` unfit for a fully qualified CDI device; None where it is fit.

    CDI specification: vendor/class=device, as container runtimes check it.
    """
    kind, equals, device = name.partition("=")
    vendor, slash, class_ = kind.partition("/")
    if (
        equals
        and slash
        and _CDI_VENDOR.fullmatch(vendor)
        and _CDI_CLASS.fullmatch(class_)
        and _CDI_DEVICE.fullmatch(device)
    ):
        return None
    return "expected a CDI name such as vendor.example/class=device"


def cdi_kind_problem(kind: str) -> str | None:
    """What makes `kind` unfit for a CDI specification's kind; None where it is fit."""
    vendor, slash, class_ = kind.partition("/")
    if slash and _CDI_VENDOR.fullmatch(vendor) and _CDI_CLASS.fullmatch(class_):
        return None
    return "expected a CDI kind such as vendor.example/class"


def cdi_device_problem(name: str) -> str | None:
    """What makes `name` unfit for a device of a CDI specification; None where it is fit."""
    if _CDI_DEVICE.fullmatch(name):
        return None
    return "expected letters, digits, '-', '_', '.' and ':', a letter or digit at both ends"


def interface_problem(name: str) -> str | None:
    """What makes `name` unfit for a network interface; None where it is fit. Linux: dev_valid_name."""
    if (
        0 < len(name.encode(errors="replace")) <= 15
        and name not in {".", ".."}
        and not _NO_INTERFACE.search(name)
    ):
        return None
    return "expected a network interface's name: 1 to 15 characters without '/', ':' and white space"


def url_problem(text: str) -> str | None:
    """What makes `text` unfit for the address of an HTTP probe; None where it is fit."""
    if not _URL.fullmatch(text):
        return "expected an address such as http://127.0.0.1:8080/healthz"
    return None


def variable_problem(name: str) -> str | None:
    """What makes `name` unfit for an environment variable of a container; None where it is fit."""
    if _VARIABLE.fullmatch(name) and len(name) <= 256:
        return None
    return "expected a variable's name: letters, digits, '_', '-' and '.', no digit first"


def path_problem(text: str) -> str | None:
    """What makes `text` unfit for an absolute path; None where it is fit."""
    if not text.startswith("/"):
        return "expected an absolute path"
    if "\0" in text or len(text) > 4095:
        return "expected a path of at most 4095 characters without NUL"
    if ".." in text.split("/"):
        return "expected a path without '..'"
    return None


def glob_problem(pattern: str) -> str | None:
    """What makes `pattern` unfit for a glob of absolute paths; None where it is fit."""
    if "**" in pattern:
        return "expected a pattern without '**': each '*' stands for one component"
    if not pattern.strip("/"):
        return "expected a pattern such as /dev/video*"
    return path_problem(pattern)


def attribute_problem(name: str) -> str | None:
    """What makes `name` unfit for a device's attribute; None where it is fit."""
    return (
        None
        if _ATTRIBUTE.fullmatch(name)
        else "expected a name such as model: a-z, 0-9 and '_', a letter first"
    )


def container_path_problem(text: str) -> str | None:
    """What makes `text` unfit for a path that something is put at in a container; None where it is fit."""
    problem = path_problem(text)
    if problem is None and not text.strip("/."):
        return "expected a path below '/'"
    return problem


def annotation_problem(key: str) -> str | None:
    """What makes `key` unfit for an annotation's key; None where it is fit."""
    prefix, slash, name = key.rpartition("/")
    fits = len(name) <= 63 and _NAME_PART.fullmatch(name)
    if fits and (not slash or (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix))):
        return None
    return "expected an annotation's key: NAME or DOMAIN/NAME"


def permissions_problem(text: str) -> str | None:
    """What makes `text` unfit for a device node's permissions; None where it is fit."""
    if text and set(text) <= set("rwm") and len(set(text)) == len(text):
        return None
    return "expected some of r (read), w (write), m (mknod)"


_NUMBER: Final = re.compile(r"(\d{1,18})", re.ASCII)

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
"""A PCI function's address: hexadecimal and of fixed width, so that 19 comes before 3b as it is."""

_LONGEST: Final = 128
"""Characters of a text whose key is remembered: at most 4 KiB each, 1 KiB as ids usually are."""


def natural(text: str) -> tuple[tuple[str, int], ...]:
    """A sort key under which `video10` comes after `video2`. Keys of usual length are remembered."""
    return _remembered(text) if len(text) <= _LONGEST else _key(text)


def _key(text: str) -> tuple[tuple[str, int], ...]:
    if _ADDRESS.fullmatch(text) is not None:
        return ((text, -1),)
    parts = _NUMBER.split(text)
    key = [(parts[i], int(parts[i + 1])) for i in range(0, len(parts) - 1, 2)]
    return (*key, (parts[-1], -1), (text, -1))


_remembered = lru_cache(maxsize=16_384)(_key)
