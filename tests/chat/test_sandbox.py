"""What a hostile template tries: to reach Python, to change our data, to hang or to fill the memory."""

from __future__ import annotations

import pytest

from minka.chat.budget import Budget, LimitError, Limits
from minka.chat.program import Program
from minka.errors import MinkaError, RequestError

SMALL = Limits(n_chars=1 << 16, n_bytes=1 << 20, cpu_s=0.2)
MESSAGES = [{"role": "user", "content": "hi"}]


NEST = "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}"


def grown(step: str, end: str = "") -> str:
    """A template that takes a step sixty times on `n.x` and `n.y`."""
    return f"{{% set n = namespace(x='ab', y=['ab']) %}}{{% for i in range(60) %}}{step}{{% endfor %}}{end}"


def render(source: str, limits: Limits = SMALL, **variables: object) -> str:
    return Program(source).render({"messages": MESSAGES, **variables}, limits)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.__class__.__name__ }}",
        "{{ messages['__class__'].__name__ }}",
        "{{ messages | attr('__class__') | attr('__mro__') }}",
        "{{ (messages | map(attribute='__class__') | first).__name__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ range.__wrapped__ }}{{ strftime_now.__self__.source }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': messages}) }}",
        "{{ ('{0.__class__}' | string).format(1) | replace('int', 'leak') }}",
        "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
        "{% for m in messages %}{{ loop._iterable.__class__ }}{{ loop.__init__.__globals__ }}{% endfor %}",
        "{{ undefined_name.__class__.__mro__ }}",
        "{{ messages[0].get.__self__.__class__ }}",
        "{{ (messages | select).gi_frame.f_globals }}",
        "{{ 'a'.encode('utf-8') }}",
        "{{ (1).to_bytes(10, 'big') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{% from 'os' import system %}{{ system }}",
        "{% extends 'base' %}",
    ],
)
def test_no_way_out(source: str) -> None:
    try:
        text = render(source)
    except RequestError as error:
        text = error.message
        assert "Traceback" not in text
    for secret in ("<class", "<module", "<frame", "subprocess", "__builtins__", "root:", "leak"):
        assert secret not in text


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].clear() }}",
        "{{ messages[0].setdefault('x', 1) }}",
        "{{ messages.clear() }}",
        "{{ messages.insert(0, 1) }}",
        "{{ messages.extend([1]) }}",
        "{% set messages[0].role = 'system' %}",
        "{% set messages.role = 'x' %}",
    ],
)
def test_no_mutation(source: str) -> None:
    with pytest.raises(MinkaError):
        render(source)
    assert MESSAGES == [{"role": "user", "content": "hi"}]


def test_what_append_changes_is_a_copy() -> None:
    kept = [1]
    assert render("{% set _ = kept.append(2) %}{{ kept.pop(0) }}{{ kept }}", kept=kept) == "1[2]"
    assert kept == [1]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
        "{{ range(100000) | select('in', range(100000) | list) | list | length }}",
        "{{ range(100000000) | list }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 * 'a' }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 9 ** (9 ** 9) }}",
        grown("{% set n.x = (n.x | length if n.x is string else n.x) * (n.x if n.x is number else 3) %}"),
        grown("{% set n.x = n.x + n.x %}"),
        grown("{% set n.x = n.x ~ n.x %}"),
        grown("{% set n.x = [n.x, n.x] | join %}"),
        grown("{% set n.x = n.x | replace('', n.x) %}"),
        grown("{% set n.x = n.x.replace('a', n.x) %}"),
        grown("{% set n.x = '{0}{0}'.format(n.x) %}"),
        grown("{% set n.x = '%s%s' % (n.x, n.x) %}"),
        grown("{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
        "{% set s = 'ab' * 10000 %}{{ s.join(s) }}",
        "{% set s = 'ab' * 10000 %}{{ range(100000) | join(s) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ messages | tojson(indent=1000000000) }}",
        "{{ [[1], [2]] | sum(start=[]) }}",
        grown(NEST, "{{ n.x }}"),
        grown(NEST, "{{ n.x | tojson }}"),
        grown(NEST, "{{ n.x ~ '' }}"),
        grown(NEST, "{{ n.x == n.y }}"),
        grown(NEST, "{{ n.x is eq(n.y) }}"),
        grown(NEST, "{{ [n.x, n.y] | unique | list }}"),
        grown("{% set n.x = (n.x, n.x) %}", "{{ {n.x: 1} }}"),
        "{% set l = [1] %}{% set _ = l.append(l) %}{{ l | tojson }}",
        "{% for i in range(100000) %}{{ 'some text that is repeated' }}{% endfor %}",
        grown("{% set n.y = n.y ~ '' if n.y is string else ('a' * 60000)[1:] %}{% set n.x = [n.x, n.y] %}"),
    ],
)
def test_nothing_without_end(source: str) -> None:
    with pytest.raises(RequestError, match="chat template"):
        render(source)


def test_namespaces_that_hold_each_other_print_nothing() -> None:
    source = "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a }}"
    assert render(source) == "<namespace>"


def test_output_of_a_message_is_bounded() -> None:
    with pytest.raises(RequestError, match="more than 65536 characters"):
        render("{{ messages[0].content }}", messages=[{"content": "x" * 70_000}])


def test_a_large_honest_conversation_fits() -> None:
    turns = [{"role": "user", "content": "word " * 500} for _ in range(1000)]
    assert len(Program("{% for m in messages %}{{ m.content }}{% endfor %}").render({"messages": turns})) == 2_500_000
    gather = "{% set n = namespace(t='') %}{% for m in messages %}{% set n.t = n.t ~ m.content %}{% endfor %}{{ n.t }}"
    assert len(Program(gather).render({"messages": turns[:500]})) == 1_250_000


def test_budget_counts_bytes_in_all() -> None:
    budget = Budget(Limits(n_chars=100, n_bytes=1000, cpu_s=60))
    for _ in range(9):
        budget.made("x" * 50)
    with pytest.raises(LimitError, match="1000 bytes"):
        budget.made("x" * 100)


def test_budget_watches_the_clock() -> None:
    budget = Budget(Limits(cpu_s=0.0))
    budget.step()
    with pytest.raises(LimitError, match="CPU time"):
        budget.step(1 << 20)


def test_weight_counts_repeats() -> None:
    budget = Budget(Limits())
    one = ["ab"]
    assert budget.weigh([one, one]) == 2 * budget.weigh(one) + 32
    assert budget.weigh({"key": "value"}) == 16 + 8
