"""The Jinja dialect of chat templates, and what errors become."""

from __future__ import annotations

import sys
import threading

import pytest
from jinja2 import nodes

from minka.chat.program import Program
from minka.chat.sandbox import Sandbox
from minka.errors import ModelError, RequestError
from tests.chat import sources


def render(source: str, **variables: object) -> str:
    return Program(source, lambda: sources.NOW).render(variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  x\n{% endif %}\ny", "  x\ny"),  # trim_blocks
        ("a\n   {% if true %}x{% endif %}", "a\nx"),  # lstrip_blocks
        ("{%- set a = [1, 2] %}{{ a | tojson }}", "[1, 2]"),
        ("{{ x | tojson }}", '{"b": "<é>\'", "a": 1}'),
        ("{{ x | tojson(ensure_ascii=true) }}", '{"b": "<\\u00e9>\'", "a": 1}'),
        ("{{ x | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":1,"b":"<é>\'"}'),
        ("{{ x | tojson(indent=1) }}", '{\n "b": "<é>\'",\n "a": 1\n}'),
        ("{{ [x] | map(attribute='a') | tojson }}", "[1]"),
        ("{{ x.items() | list | length }}", "2"),
        ("{% for i in 'abc' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "ac"),
        ("{% for i in 'abc' %}{% if i == 'b' %}{% break %}{% endif %}{{ i }}{% endfor %}", "a"),
        ("{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y is defined }}", "1False"),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{% for n in tree recursive %}{{ n.a }}{{ loop(n.c) }}{% endfor %}", "12"),
        ("{{ 'a, b'.split(', ') | join('-') ~ 'x'.upper() }}", "a-bX"),
        ("{{ '%s is %d' | format('a', 1) }}/{{ '{} {k}'.format(1, k=2) }}/{{ '%s' % 'c' }}", "a is 1/1 2/c"),
        ("{{ 'abcd'[1:3] }}{{ [1, 2, 3][::-1] }}", "bc[3, 2, 1]"),
        ("{{ 7 // 2 }} {{ 2 ** 5 }} {{ 7 % 4 }} {{ -3 * 2 }}", "3 32 3 -6"),
        ("{{ [3, 1] | sort | first }}{{ [1, 2] | sum }}{{ 'x' in ['x'] }}{{ [1] == [1] }}", "13TrueTrue"),
        ("{{ none is none }}{{ nothing is defined }}[{{ nothing }}]", "TrueFalse[]"),
        ("{{ 'a' + nothing + 'b' }}{{ x.missing + 'c' }}", "abc"),
        ("{% macro m(a, b='!') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call m('x') %}y{% endcall %}", "x!y"),
        ("{% filter trim %}  x  {% endfilter %}{% set s %} y {% endset %}{{ s | trim }}", "xy"),
        ("{{ {'a': {'b': 1}}['a'].b }}{{ {'k' ~ 1: 2} | tojson }}", '1{"k1": 2}'),
        ("{{ 'x' if x.missing is defined else 'z' }}{{ x.get('a', 0) }}", "z1"),
    ],
)
def test_dialect(source: str, expected: str) -> None:
    tree = [{"a": 1, "c": [{"a": 2, "c": []}]}]
    assert render(source, x={"b": "<é>'", "a": 1}, tree=tree) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Only user messages, please') }}", "Only user messages, please"),
        ("{{ raise_exception('') }}", "the chat template refuses this conversation"),
        ("a\n\n{{ nothing.at.all }}", "the chat template failed at line 3: 'nothing' is undefined"),
        ("{{ 'a' + 1 }}", "the chat template failed at line 1: can only concatenate str"),
        ("{{ 1 + nothing }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ {}.pop('x') }}", "unsafe"),
        ("{{ messages | tojson }}", "Undefined is not JSON serializable"),
        ("{% if true %}{{ 'x' | from_yaml }}{% endif %}", "No filter named 'from_yaml'"),
        ("{{ '\\ud800' }}", "surrogate"),
    ],
)
def test_errors_are_the_clients(source: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert message in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ 'x' | no_such_filter }}",
        "{% for x in y %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        " " * (1 << 21),
    ],
)
def test_a_broken_template_is_the_models(source: str) -> None:
    program = Program(source)
    for use in (program.check, lambda: program.render({})):
        with pytest.raises(ModelError, match="--chat-template"):
            use()


def test_values_that_are_no_json_are_refused() -> None:
    with pytest.raises(RequestError, match="no JSON value"):
        render("{{ x }}", x=object())


def test_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    parse = Sandbox.parse

    def counted(sandbox: Sandbox, source: str) -> nodes.Template:
        compiled.append(source)
        return parse(sandbox, source)

    monkeypatch.setattr(Sandbox, "parse", counted)
    program = Program("{{ x }}")
    assert compiled == []
    assert [program.render({"x": i}) for i in range(3)] == ["0", "1", "2"]
    assert len(compiled) == 1


def test_renderings_in_threads_do_not_mix() -> None:
    program = Program(
        "{% set n = namespace(t='') %}{% for i in range(200) %}{% set n.t = n.t ~ x %}{% endfor %}{{ n.t }}"
    )
    results: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: program.render({"x": str(i)})})) for i in range(8)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == {i: str(i) * 200 for i in range(8)}
