from __future__ import annotations

import re

import pytest

from minka.errors import RequestError, UnsupportedError
from minka.protocols.lark_regex import lark_regex

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""


def test_a_patch_grammar() -> None:
    pattern = re.compile(lark_regex(PATCH, "g"))
    assert pattern.fullmatch("*** Begin Patch\n*** Add File: a.py\n+x = 1\n+\n*** End Patch\n")
    assert pattern.fullmatch("*** Begin Patch\n*** Update File: a\n@@ def f\n-x\n+y\n*** Delete File: b\n*** End Patch")
    assert not pattern.fullmatch("*** Begin Patch\n*** End Patch\n")
    assert not pattern.fullmatch("*** Begin Patch\n*** Add File: a.py\nx = 1\n*** End Patch\n")


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a" "b"~2', "abb", "ab"),
        ('start: "a"~1..3', "aaa", "aaaa"),
        ('start: ["x"] ("y" | "z")*', "xyzz", "xx"),
        ('start: "SELECT"i WS_INLINE NAME\nNAME: "a".."f"+\n%import common.WS_INLINE', "select  abc", "select xyz"),
        ('start: one\n    | two\none: "1"\n?two.2: "2"  // a comment', "2", "3"),
        (r'start: "say \"hi\"\n" /a\/b/', 'say "hi"\na/b', "say hi"),
        (r"start: /[a-z]+/i", "AbC", "1"),
        ("start: N\n%import common.SIGNED_NUMBER -> N", "-1.5e3", "x"),
    ],
)
def test_what_matches(grammar: str, good: str, bad: str) -> None:
    pattern = re.compile(lark_regex(grammar, "g"))
    assert pattern.fullmatch(good)
    assert not pattern.fullmatch(bad)


@pytest.mark.parametrize(
    ("grammar", "sentence"),
    [
        ('start: "(" start ")" | "x"', "'start' contains itself"),
        ('start: a\na: b\nb: "x" a', "'a' contains itself"),
        ("start: X\n%import common.NOWHERE -> X", "NOWHERE"),
        ('start: "a"\n%ignore " "', "%ignore"),
        ("start: /a/x", "flags x"),
        ("start: " + " ".join(["a"] * 500) + '\na: "' + "x" * 300 + '"', "too large"),
    ],
)
def test_what_cannot_be_enforced(grammar: str, sentence: str) -> None:
    with pytest.raises(UnsupportedError, match=sentence) as caught:
        lark_regex(grammar, "tools[0].format.definition")
    assert caught.value.param == "tools[0].format.definition"


@pytest.mark.parametrize(
    "grammar",
    ["", "other: /a/", "start: missing", 'start: ("a"', "start: a~b", 'start: "a" ]', "start: /[/", "start: $", "= 1"],
)
def test_a_broken_grammar(grammar: str) -> None:
    with pytest.raises(RequestError, match="broken"):
        lark_regex(grammar, "g")
