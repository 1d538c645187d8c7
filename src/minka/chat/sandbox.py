"""A Jinja environment that a hostile template can neither leave nor exhaust.

It is jinja2's ImmutableSandboxedEnvironment, which keeps templates away from Python's internals, plus a budget: loops,
calls, filters and the operators that make values grow are counted. One environment serves one rendering, because it
holds that rendering's budget; the compiled code is shared. It knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TypeVar, cast

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from minka.chat.budget import Budget, Limits
from minka.chat.growth import (
    bounded_iterables,
    check_filter,
    check_format,
    check_method,
    check_operator,
    weigh_container,
)

T = TypeVar("T")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (
        str,
        _names(
            "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
            "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
            "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
        ),
    ),
    (dict, _names("copy get items keys values")),
    (list, _names("append copy count index pop")),
    (tuple, _names("count index")),
    (float, _names("is_integer")),
    (int, frozenset()),
    (bytes, frozenset()),
)
"""Methods a template may use, by type. `append` and `pop` of lists are what llama.cpp adds to Hugging Face's sandbox:
templates that are written for it use them, and every list a template sees is a copy made for that rendering."""

DROPPED_FILTERS = _names("center filesizeformat pprint random urlize wordwrap xmlattr")
"""Jinja's HTML and layout filters: no chat template uses them, and some make text of any size out of two arguments."""

KEEPS_SHAPE = _names(
    "abs attr batch count d default first float int items last length list map reject rejectattr reverse round select "
    "selectattr slice"
)
"""Filters that never turn a list or a mapping into text, and never compare two of them."""

COMPARING_TESTS = _names("!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lt ne")
JOIN, CUT, WEIGHED = "~", "[:]", "=="
"""Names of the filters that `_Metering` puts into a template; a template cannot spell them."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`, with which Hugging Face marks what the assistant said; no output."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own."""
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class _QuietNamespace(Namespace):
    """`namespace()` that prints no contents: namespaces may hold each other, and their text could be endless."""

    def __repr__(self) -> str:
        return "<namespace>"


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering (or of compiling): whitespace rules and tags as Hugging Face sets them."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: Limits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is evaluated while compiling
            cache_size=0,
            finalize=self._weighed,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.budget = Budget(limits)
        self.globals["namespace"] = _QuietNamespace
        del self.globals["lipsum"]
        for name in DROPPED_FILTERS:
            del self.filters[name]
        for name, function in self.filters.items():
            self.add_filter(name, function)
        for name in COMPARING_TESTS:
            self.tests[name] = self._weighing(cast("Callable[..., bool]", self.tests[name]))
        self.filters.update({JOIN: self._join_operands, CUT: self._made, WEIGHED: self._weighed})

    def add_filter(self, name: str, function: Callable[..., object]) -> None:
        """A filter, counted, with its arguments and its result checked for their size."""
        # A filter may ask jinja2 for its context or environment as a first argument; `wraps` keeps that mark.
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def metered(*args: object, **kwargs: object) -> object:
            self.budget.step()
            values: Sequence[object] = args[first:]
            if name not in KEEPS_SHAPE:
                values = bounded_iterables(values)
                for value in (*values, *kwargs.values()):
                    weigh_container(self.budget, value)
            check_filter(self.budget, name, values, kwargs)
            made = function(*args[:first], *values, **kwargs)
            # Prompts are no HTML: text marked as safe by `|safe` would escape what it is added to.
            return self._made("".join((made,)) if isinstance(made, Markup) else made)

        self.filters[name] = metered

    @property
    def step(self) -> None:
        """Counts one step. A property, because a loop's body starts with `environment.step`: see `_Metering`."""
        self.budget.step()

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether a template may read an attribute: by list for plain values, by jinja2's rules for the rest."""
        if type(obj) is _QuietNamespace:  # isinstance is slow on these, and they are read in every loop
            return not attr.startswith("_")
        for kind, names in METHODS:
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: object, argument: object) -> object:
        """`obj[argument]`. A tuple is no key of any JSON, and hashing one can take forever."""
        if isinstance(argument, tuple):
            return self.undefined(obj=obj, name="a tuple")
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: object, *args: object, **kwargs: object) -> object:  # noqa: N805
        """A call in a template, counted; methods of plain values are checked for the size of what they make."""
        __self.budget.step()
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, (str, list, tuple, dict, LoopContext)):
            args = tuple(bounded_iterables(args))
            check_method(__self.budget, receiver, getattr(__obj, "__name__", ""), args)
        return __self._made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """An operator that can make a value grow. What is missing may be added to a text, as in llama.cpp's engine."""
        if operator == "+" and isinstance(left, Undefined) and isinstance(right, str):
            return right
        if operator == "+" and isinstance(left, str) and isinstance(right, Undefined):
            return left
        check_operator(self.budget, operator, left, right)
        return self._made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """jinja2's safe `str.format`, with a bound on what it makes."""
        safe = super().wrap_str_format(value)
        template = getattr(value, "__self__", None)
        if safe is None or not isinstance(template, str):
            return None

        def bounded(*args: object, **kwargs: object) -> str:
            kwargs = {key: item for key, item in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
            check_format(self.budget, template, (args, kwargs))
            return self._made(safe(*args, **kwargs))

        return bounded

    def concat(self, chunks: Iterable[str]) -> str:
        """Joins the output of a template, a macro or a block, as long as it is within the limit."""
        kept: list[str] = []
        total = 0
        for chunk in chunks:
            total += len(chunk)
            self.budget.expect(total)
            kept.append(chunk)
        return self._made("".join(kept))

    def _made(self, value: T) -> T:
        self.budget.made(value)
        return value

    def _weighed(self, value: T) -> T:
        weigh_container(self.budget, value)
        return value

    def _join_operands(self, operands: list[object]) -> str:
        """The `~` operator."""
        self.budget.weigh(operands)
        return self._made("".join(map(str, operands)))

    def _weighing(self, test: Callable[..., bool]) -> Callable[..., bool]:
        @wraps(test)
        def weighing(*args: object) -> bool:
            self.budget.step()
            return test(*map(self._weighed, args))

        return weighing


class _Metering(NodeTransformer):
    """Puts the budget into a parsed template where jinja2 offers no hook: loops, `~`, slices and comparisons."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("step"), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), JOIN)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, CUT) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        if any(isinstance(operand, nodes.Const) for operand in operands):
            return node  # against a plain constant there is nothing to descend into
        node.expr = _filter(node.expr, WEIGHED)
        for operand in node.ops:
            operand.expr = _filter(operand.expr, WEIGHED)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filter(node.key, WEIGHED)
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def metered(template: nodes.Template) -> nodes.Template:
    """The same template, counting its steps."""
    result: nodes.Template = _Metering().visit(template)
    return result
