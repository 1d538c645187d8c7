"""llama.cpp's grammars: its samples in spirit, its syntax to the letter, its limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minka.errors import RequestError
from minka.grammar.bodies import gbnf
from tests.grammar.matching import body_accepts

ARITHMETIC = """
root  ::= (sum "=" blank operand "\\n")+
sum   ::= operand ([-+*/] operand)*
operand ::= name | number | "(" blank sum ")" blank
name  ::= [a-z] [a-z0-9_]* blank
number ::= [0-9]+ blank
blank ::= [ \\t\\n]*   # as much as there is
"""
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
MOVES = """
root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
KANA = "root ::= kana+ ([ \\t\\n] kana+)*\nkana ::= [ぁ-ゟ] | [ァ-ヿ] | [、-〾]\n"


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (ARITHMETIC, ["a=b\n", "(a+1)*2 -x1=  7\n3=4\n"], ["a=b", "=\n", "1a=2\n"]),
        (JSON, ['{"a": [1, 2.5 ,"x\\n"],\n  "b": {}}', "{}"], ["[1]", "{a:1}", '{"a":01}']),
        (MOVES, ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O O-O-O+\n2. bxc8=Q# Qh4\n"], ["1. e4 e5\n", "1. e9 e5\n"]),
        (KANA, ["ひらがな カタカナ、"], ["abc", " あ"]),
        ('root ::= [a-z]+ "end"', ["abcend", "endend"], ["abc"]),
        ('root ::= x\nx ::= "(" x ")" |', ["", "(())"], ["(()"]),
        ('root ::= root "+" [0-9] | [0-9]', ["1+2+3"], ["1+"]),
        ('root ::= "a"{2} ("b"{1,} | "c"{0,2})', ["aab", "aabbb", "aa", "aacc"], ["a", "aaccc"]),
        ('root ::= ("a"{2}){2}', ["aaaa"], ["aaa"]),
        ('root ::= "a"{2}{2}', ["aaaa"], ["aaa"]),
        ('root ::= a-b |\n  "z"\na-b ::= (\n"x" | "y" # a comment\n)', ["x", "y", "z"], ["", "xy"]),
        ("root ::= [\\-\\]a\\x41\\u00e9-\\U000000ea]+", ["-]aAéê"], ["\\", "b"]),
        ('root ::= .* "!"', ["\n!", "é!!"], ["x"]),
        ('root ::= "\\"\\\\\\n/<"', ['"\\\n/<'], [""]),
        ("root ::= [^\\n/]+", ["a<b"], ["/"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_a_grammar_matches_what_it_says(grammar: str, good: list[str], bad: list[str]) -> None:
    body = gbnf(grammar)
    assert [text for text in good if not body_accepts(body, text)] == []
    assert [text for text in bad if body_accepts(body, text)] == []


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("root ::= (", "line 1"),
        ('root ::= "a', "does not end"),
        ("root := x", '"::="'),
        ("root ::= x", 'the rule "x"'),
        ('x ::= "a"', '"root"'),
        ('root ::= "a"{1,1000000}', "more than 100000 times"),
        ('root ::= "a"{3,1}', "before it begins"),
        ("root ::= [z-a]", "wrong way round"),
        ("root ::= []", "empty"),
        ('root ::= "\\q"', "unknown escape"),
        ("root ::= [\\ud800]", "no such character"),
        ("root ::= *", "nothing to repeat"),
        ('root ::= "a" )', "end of the line"),
        ('root ::= "a"\n\nroot ::= "b"', "line 3"),
        ("root ::= " + "(" * 5_000, "nested too deeply"),
        ("", '"root"'),
        ('root ::= !<|end|> "a"', "the id of the token"),
    ],
)
def test_what_is_no_grammar_is_refused(grammar: str, said: str) -> None:
    with pytest.raises(RequestError, match="grammar") as caught:
        gbnf(grammar)
    assert said in caught.value.message
    assert caught.value.param == "grammar"


SAMPLES = Path(os.environ.get("LLAMA_CPP_GRAMMARS", ""))


@pytest.mark.skipif(not SAMPLES.name, reason="LLAMA_CPP_GRAMMARS does not name llama.cpp's directory of grammars")
def test_llama_cpps_own_samples_work() -> None:
    texts = {
        "arithmetic": "a=b\n(x+1)*2=7\n",
        "c": "int main(){return 1;}",
        "chess": "1. e4 e5\n2. Nf3 Nc6\n",
        "english": "Hello there, you!",
        "japanese": "ひらがな カタカナ。",
        "json": '{"a": [1, 2.5e3 ,"x\\n"], "b": {}}',
        "json_arr": '[\n1,\n{"a": "b"}]',
        "list": "- a\n- b c\n",
    }
    for file in sorted(SAMPLES.glob("*.gbnf")):
        assert body_accepts(gbnf(file.read_text(encoding="utf-8")), texts[file.stem]), file.name
