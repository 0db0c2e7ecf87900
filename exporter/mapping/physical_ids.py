"""Names of physical devices in texts of any origin: UUIDs and PCI addresses, each in one form. Pure.

A text counts only if its form leaves no doubt. Indexes, `all` and `void` name no device.
"""

import re
from typing import Final

LONGEST: Final = 4096
"""Characters of a text that is searched. Longer ones name nothing."""

_HEX: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PREFIXED: Final = re.compile(
    rf"(?:GPU|MIG)-{_HEX}|MIG-GPU-{_HEX}/[0-9]{{1,4}}/[0-9]{{1,4}}|GPU-[0-9a-fA-F]{{16}}"
)
"""NVML's UUIDs of GPUs and MIG slices, old and new form, and ROCm's of GPUs (16 hexadecimal digits)."""
_PLAIN: Final = re.compile(_HEX)
_PCI: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]"
_ADDRESS: Final = re.compile(_PCI)
_SEPARATORS: Final = re.compile(r"[,;\s]")
_AT_END: Final = re.compile(rf"(?:pci-)?({_PCI})(?:-(?:card|render|uverbs))?")
_ADDRESSES: Final = re.compile(rf"(?<![0-9a-zA-Z:.]){_PCI}(?![0-9a-zA-Z:.])")


def gpu_uuid(text: str) -> str:
    """The UUID `GPU-…` or `MIG-…` that the whole `text` is, with lowercase digits; "" if it is none."""
    if not text.startswith(("GPU-", "MIG-")) or len(text) > LONGEST or _PREFIXED.fullmatch(text) is None:
        return ""
    digits = text.rpartition("GPU-" if "GPU-" in text else "MIG-")
    return f"{digits[0]}{digits[1]}{digits[2].lower()}"


def uuid(text: str) -> str:
    """The UUID that the whole `text` is, with a prefix (`gpu_uuid`) or without; "" if it is none."""
    return gpu_uuid(text) or (text.lower() if _PLAIN.fullmatch(text) is not None else "")


def pci_address(text: str) -> str:
    """The PCI address that the whole `text` is, as the kernel writes it (`0000:3b:00.0`); "" if it is none.

    NVML writes eight digits of the domain, and capital letters.
    """
    return _as_kernel(text) if _ADDRESS.fullmatch(text) is not None else ""


def pci_addresses_in(text: str) -> tuple[str, ...]:
    """The PCI addresses in `text`, each once. In a path, only one that is the last name of the path, alone or
    as `pci-ADDRESS-card`: an address before belongs to a bridge, and a longer name to what is behind it.
    """
    if len(text) > LONGEST:
        return ()
    found: list[str] = []
    for part in _SEPARATORS.split(text):
        name = _AT_END.fullmatch(part.rpartition("/")[2]) if "/" in part else None
        found += _ADDRESSES.findall(part) if "/" not in part else [name[1]] if name is not None else []
    return tuple(dict.fromkeys([_as_kernel(one) for one in found]))


def _as_kernel(address: str) -> str:
    domain, _, rest = address.partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}".lower()
