"""Names as an enemy would choose them: for ids, resources, pods, labels, reasons, for all from outside.

Each is text that a kubelet's or a plugin's message can carry (UTF-8, so no lone surrogates). For what reaches
us in other ways, through an address or a file's name, SURROGATES has those too.
"""

from typing import Final

LONG: Final = "GPU-" + "0123456789abcdef" * 256
"""4 KiB and a bit, which only its end tells from another one."""

CORPUS: Final[dict[str, str]] = {
    "markup": "<script>alert(1)</script>",
    "attribute": "\" onmouseover='alert(1)' x=\"",
    "broken markup": "</td></table><img src=x onerror=alert(1)>",
    "comment": "<!-- --!> ]]> <![CDATA[",
    "entity": "&lt;b&gt; &amp; &#x3c;i&#62;",
    "template": "{{ 7*7 }} {% raw %} ${7*7} #{x}",
    "quotes": "'\"`\\",
    "line ends": "a\nb\r\nc\rd",
    "header": "x\r\nSet-Cookie: owned=1\r\n\r\n<html>",
    "exposition": 'x"} 1\n# TYPE owned gauge\nowned{a="b\\',
    "end of exposition": "x\n# EOF\n",
    "nul": "a\x00b",
    "escape": "\x1b[2J\x1b[31mred\x1b]0;owned\x07",
    "c1": "\x9b31m\x85\x80",
    "backspaces": "safe\x08\x08\x08\x08evil",
    "delete and tabs": "a\x7f\tb\vc\fd",
    "right to left": "\u202egpj.exe\u202c",
    "isolates": "\u2066\u2067a\u2068b\u2069",
    "arabic": "\u062c\u0647\u0627\u0632-1",
    "zero width": "a\u200bb\u200dc\ufeffd\u2060",
    "line separators": "a\u2028b\u2029c",
    "combining": "Z" + "\u0300\u0489" * 60,
    "astral": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001d573 \U000e0041",
    "non-characters": "\ufffe\uffff\U0010ffff",
    "wide": "\u6f22\u5b57\uff26\uff35\uff2c\uff2c",
    "spaces": "  leading\u00a0and trailing \u3000",
    "blank": " ",
    "dot": ".",
    "dots": "..",
    "path": "../../etc/passwd",
    "slashes": "/a//b/",
    "percent": "%2F%2e%00%zz%",
    "address": "javascript:alert(1)//http://x/?a=b&c=d#e;f+g",
    "sql": "'; DROP TABLE holding; --",
    "formula": "=cmd|' /C calc'!A0",
    "backslashes": r"\x1b\u202e\n\\" + "\\",
    "json": '{"a":"\\u0000"},[',
    "number": "1e999",
    "null": "null",
    "long": LONG,
    "long line": "\u202e<b>\n" * 1024,
}
"""By what is hostile in it."""

SURROGATES: Final[dict[str, str]] = {
    "high": "a\ud800b",
    "low": "\udfff",
    "escaped byte": "caf\udce9",
    "turned pair": "\udc00\ud800",
}
"""Half characters, which UTF-8 cannot carry."""
