"""Texts that somebody hostile, or unlucky, could put wherever there is a text, by what they attack."""

from __future__ import annotations

CALL = "hacked()"  # whatever runs calls this

BY_KIND: dict[str, tuple[str, ...]] = {
    "scripts": (
        f"<script>{CALL}</script>",
        f"</script><script>{CALL}</script>",
        f"<img src=x onerror={CALL}>",
        f"<svg><animate onbegin={CALL} attributeName=x dur=1s></svg>",
        f"<details open ontoggle={CALL}>",
        f"<iframe srcdoc='<script>parent.{CALL}</script>'></iframe>",
        f"<math><mtext><style><img title='</style><img src=x onerror={CALL}>'>",
    ),
    "attributes": (
        f'" onmouseover={CALL} x="',
        f"' onfocus={CALL} autofocus tabindex=1 x='",
        f"javascript:{CALL}",
        "data:text/html;base64,PHNjcmlwdD5oYWNrZWQoKTwvc2NyaXB0Pg==",
        f"x style=background:url(javascript:{CALL})",
    ),
    "templates": ("{{ 7 * 7 }}", "{% include '/etc/passwd' %}", "${7*7}", "#{7*7}", "<%= 7 %>", f"`${{{CALL}}}`"),
    "sql": ("'; DROP TABLE launch; --", "1 OR 1=1", '" OR ""="', "%' ESCAPE '\\", "NULL"),
    "paths": ("../../../../etc/passwd", "/dev/null", "C:\\..\\CON", "file:///etc/passwd", "a/b\\c", "~root", "."),
    "formats": ("%s%n%d%x", "{0.__class__}", "{}", "%(x)s", "\\u0000\\x1b", "$HOME `id` $(id)"),
    "terminals": (
        "\x1b[2J\x1b[1;1H",
        "\x1b]0;title\x07",
        "\x1b]8;;https://example.invalid\x1b\\link\x1b]8;;\x1b\\",
        "\x9b31m",
        "\x90q\x9c",
        "\x07\x08\x0c\x0b\x7f",
        "left\rover",
        "\x1b]52;c;aGFja2Vk\x07",
    ),
    "directions": ("\u202egnp.exe", "\u2066a\u2069", "\u200fא\u200e", "\u061c", "\u2067שלום\u2069"),
    "widths": ("\u200b\u200c\u200d\ufeff", "a\u0300\u0301\u0302" + "\u0300" * 60, "\U000e0041\U000e007f", "ｆｕｌｌ"),
    "breaks": ("two\nlines", "two\r\nlines", "a\u2028b\u2029c", "a\x85b", "\t\ttabs", "a\x00b"),
    "emoji": ("👩‍👩‍👧‍👦", "🇺🇳", "\U0001f525" * 40),
    "empty": ("", " ", "\t", "\u3000", "\u00a0"),
    "long": ("W" * 5000, "ж" * 3000, "a b " * 2000),
    "reserved": ("null", "None", "true", "undefined", "NaN", "__proto__", "constructor", "con", "nul", "session"),
    "numbers": ("0", "-1", "1e999", "Infinity", "0x10", "1_000", "٣", "1,5", "9" * 400, "-0"),
    "formulas": (
        '=HYPERLINK("https://example.invalid","x")',
        "+1+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(1)",
        "\t=1+1",
        "\r=1+1",
        "＝1+1",
    ),
    "markup": (
        "<!--",
        "-->",
        "]]>",
        "<![CDATA[x",
        "<!DOCTYPE a [<!ENTITY b 'c'>]>&b;",
        "&lt;&amp;&#0;",
        "\ufffe\uffff",
    ),
    "markdown": (
        "@octocat",
        "#1 octo/repo#2 GH-3",
        "[a](https://example.invalid) ![b](https://example.invalid/b.png)",
        "| a | b |\n|---|---|",
        "```\n</details>\n```",
        "<b>bold</b><br><sub>x</sub>",
        "https://example.invalid www.example.invalid",
        "- [ ] task",
    ),
}
TEXTS = tuple(text for texts in BY_KIND.values() for text in texts)
# Bytes that are no UTF-8, for a column of text that holds them all the same.
NO_TEXT = (b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf", b"\x80" * 30)
# As JSON writes half a character.
HALVES = ("\ud800", "a\udfffb", "\ud83d")
