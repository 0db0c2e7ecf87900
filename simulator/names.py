"""The kubelet's own rules for what a device plugin may call its resource."""

import re

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_QUOTA_PREFIX = "requests."


def is_extended_resource(name: str) -> bool:
    """Whether the kubelet lets a plugin serve `name` (the API's rule for extended resources).

    One slash; a lower-case DNS domain that is not Kubernetes' own, short enough to be prefixed for
    quotas (253 characters); up to 63 letters, digits, `-`, `_`, `.` behind the slash.
    """
    domain, slash, rest = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith(_QUOTA_PREFIX):
        return False
    if len(_QUOTA_PREFIX + domain) > 253 or _DOMAIN.fullmatch(domain) is None:
        return False
    return len(rest) <= 63 and _NAME.fullmatch(rest) is not None
