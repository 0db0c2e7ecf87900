"""Faults as words on a command line."""

from dataclasses import replace
from typing import Any

from runtime.flags import parse_duration
from simulator.faults import NO_FAULTS, Faults, RegistrationFaults


def parse_faults(words: tuple[str, ...]) -> Faults:
    """The faults that words like `slow=3s` and `hang` stand for. Raises ValueError."""
    faults = NO_FAULTS
    for word in words:
        name, _, text = word.partition("=")
        part, _, registration = name.rpartition(".")
        if part == "registration":
            changed = replace(faults.registration, **_fault(word, registration, text, RegistrationFaults))
            faults = replace(faults, registration=changed)
        elif name != "none":
            faults = replace(faults, **_fault(word, name, text, Faults))
    return faults


def _fault(word: str, name: str, text: str, kind: type[Faults | RegistrationFaults]) -> dict[str, Any]:
    value: Any
    match name.replace("-", "_"), text:
        case "slow" as field, _:
            value = parse_duration(text)
        case ("hang" | "garbage" | "oversized" | "twice" | "gone") as field, "":
            value = True
        case "rate_limited" as field, _ if (text or "1").isascii() and (text or "1").isdigit():
            value = int(text or 1)
        case "error" as field, _ if text:
            value = text.upper()
        case ("methods" | "forgets") as field, _:
            value = tuple(one for one in text.split(",") if one)
        case _:
            raise ValueError(f"found {word!r}, expected a fault such as slow=3s, hang, garbage, gone or none")
    if field not in kind.__dataclass_fields__:
        raise ValueError(f"found {word!r}, which Registration cannot do")
    return {field: value}
