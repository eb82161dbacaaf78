"""Evaluates expressions. A value inherits taints and origins from its parts."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace

from .members import MemberResolver
from .values import UNKNOWN_LITERAL, Function, TracedOperation, Value
from .walk_state import FuelExhausted, origins_of, taints_of

_CONTAINERS = {ast.List: "list", ast.Tuple: "tuple", ast.Set: "set"}
_FILLED_IN = "{}"
"""Stands, in the literal of a string, for a part that is filled in when the code runs."""
_MAX_LITERAL_TEXT_LENGTH = 80
_MAX_FOLDED_NUMBER = 1e12
"""Arithmetic on larger numbers is left out: a long product would be an integer of any length."""


class ExpressionWalker(MemberResolver):
    """Turns expressions into values.

    Evaluating has side effects: calls and look-ups are added to the trace. So each method evaluates each of its
    children exactly once, in the order in which Python would. A value's ``taint`` and ``origin`` are the union of its
    parts', unless a comment says why not.
    """

    def value(self, node: ast.expr) -> Value:
        """Evaluate ``node`` here."""
        self.fuel -= 1
        if self.fuel < 0:
            raise FuelExhausted
        match node:
            case ast.Name():
                return self.name(node.id)
            case ast.Attribute():
                return self.attribute(self.value(node.value), node.attr)
            case ast.Call():
                return self.call(node)
            case ast.Constant():
                return Value(text=repr(node.value)[:_MAX_LITERAL_TEXT_LENGTH], literal=node.value)
            case ast.Subscript():
                return self.item(self.value(node.value), self.value(node.slice))
            case ast.Await(value=ast.Name() | ast.Attribute()):
                self.emit("wait", node)
                return self.value(node.value)
            case ast.Await() | ast.Starred():
                return self.value(node.value)
            case ast.JoinedStr():
                return self._evaluate_fstring(node)
            case ast.Compare():
                return self._evaluate_comparison(node)
            case ast.Dict():
                return self._evaluate_dict(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._evaluate_sequence(node)
            case ast.BoolOp():
                return self._evaluate_boolean(node)
            case ast.BinOp():
                return self._evaluate_binary(node)
            case ast.UnaryOp():
                return self._evaluate_unary(node)
            case ast.IfExp():
                return self._evaluate_conditional(node)
            case ast.NamedExpr():
                return self._evaluate_walrus(node)
            case ast.Lambda():
                function = Function(node, self.module, scope=self.scope, owner=self.scope.owner)
                return Value(text="<lambda>", function=function)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._evaluate_comprehension(node)
            case ast.Yield():
                return self.evaluate_yield(node)
            case _:
                return self._combine_parts(node)

    def _combine_parts(self, node: ast.expr) -> Value:
        """The value of an expression that is not modelled: it depends on its parts, and nothing else is known."""
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Value(text=f"<{type(node).__name__.lower()}>", taint=taints_of(*parts), origin=origins_of(*parts))

    # -- f-strings and operators

    def _evaluate_fstring(self, node: ast.JoinedStr) -> Value:
        values, literal_parts, text_parts = [], [], []
        for part in node.values:
            if isinstance(part, ast.Constant):
                literal_parts.append(str(part.value))
                text_parts.append(str(part.value))
            elif isinstance(part, ast.FormattedValue):
                value = self.value(part.value)
                values.append(value)
                literal_parts.append(value.literal if isinstance(value.literal, str) else _FILLED_IN)
                text_parts.append("{" + value.text + "}")
        return Value(
            text=self.text("f", *text_parts),
            literal="".join(literal_parts),
            taint=taints_of(*values),
            origin=origins_of(*values),
        )

    def _evaluate_binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        literal: object = UNKNOWN_LITERAL
        if isinstance(node.op, ast.Add) and (left.string is not None or right.string is not None):
            literal = (_FILLED_IN if left.string is None else left.string) + (
                _FILLED_IN if right.string is None else right.string
            )
        elif isinstance(node.op, ast.Mod) and left.string is not None:
            literal = left.string
        elif _is_number(left) and _is_number(right):
            literal = _fold_arithmetic(node.op, left.literal, right.literal)
        items = (*left.items, *right.items) if isinstance(node.op, ast.Add) else ()
        if isinstance(node.op, ast.BitOr) and left.ref and right.literal is None:
            return left  # `int | None`: a type union, so the type itself
        value = Value(
            text=self.text(left.text, type(node.op).__name__, right.text),
            literal=literal,
            items=items,
            taint=taints_of(left, right),
            origin=origins_of(left, right),
        )
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult) and ("django.F" in (left.tag, right.tag)):
            value.tag = "django.F+"
        return value

    def _evaluate_boolean(self, node: ast.BoolOp) -> Value:
        operands = [self.value(operand) for operand in node.values]
        if isinstance(node.op, ast.Or):
            # `message.id or uuid4()` is the id: the later operands are fallbacks, and their taints do not count
            chosen = next((value for value in operands if _is_concrete(value) or value.taint), operands[0])
            return replace(chosen, origin=origins_of(*operands))
        text = self.text(*(value.text for value in operands))
        return Value(text=text, taint=taints_of(*operands), origin=origins_of(*operands))

    def _evaluate_conditional(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        branch = self.number()
        values = []
        for arm, operand in enumerate((node.body, node.orelse)):
            self.conditions.append(test.origin)
            with self.at_position(self.position.in_arm(branch, arm)):
                values.append(self.value(operand))
            self.conditions.pop()
        chosen = next((value for value in values if _is_concrete(value) and value.literal is not None), values[0])
        # only the taint of the `if` value: the `else` value is the fallback, as in `or`, and the test only chooses
        return replace(chosen, taint=values[0].taint, origin=origins_of(test, *values))

    def _evaluate_comparison(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        rights = [self.value(comparator) for comparator in node.comparators]
        origin = origins_of(left, *rights)
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            origin += self.emit_lookup(rights[0], left, node)
        return Value(
            text=self.text(left.text, "~", *(right.text for right in rights)),
            taint=taints_of(left, *rights),
            origin=origin,
        )

    def emit_lookup(self, container: Value, key: Value, node: ast.expr) -> tuple[TracedOperation, ...]:
        """`id in seen`: a check on what this process remembers."""
        if container.tag not in ("set", "dict", "list", "deque") or container.literal is not UNKNOWN_LITERAL:
            return ()
        if not self.outlives(container):
            return ()
        return (self.emit("read", node, text=f"in {container.text}", store="memory", location=container.text, key=key),)

    def outlives(self, container: Value) -> bool:
        """Whether a container lives longer than one message: the handler has no local variable of that name."""
        name = container.text.partition(".")[0].partition("[")[0]
        return self.scope.names.get(name) is None or name == "self"

    def _evaluate_unary(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        literal: object = UNKNOWN_LITERAL
        if isinstance(node.op, ast.USub) and isinstance(operand.literal, int | float):
            literal = -operand.literal
        return Value(text=self.text("~", operand.text), literal=literal, taint=operand.taint, origin=operand.origin)

    def _evaluate_walrus(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.scope.names[node.target.id] = value
        return value

    def _evaluate_dict(self, node: ast.Dict) -> Value:
        fields: dict[str, Value] = {}
        values = []
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            key = self.value(key_node) if key_node is not None else None
            value = self.value(value_node)
            values.append(value)
            if key is None:  # `**value`
                fields.update(value.fields or {})
            elif isinstance(key.literal, str):
                fields[key.literal] = value
            else:
                fields[f"<{key.text}>"] = value
        # without the keys' taints: a key names a value, it does not become part of one
        return Value(text="{…}", tag="dict", fields=fields, taint=taints_of(*values), origin=origins_of(*values))

    def _evaluate_sequence(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        items = tuple(self.value(element) for element in node.elts)
        text = self.text("(", ",".join(item.text for item in items), ")")
        return Value(
            text=text, tag=_CONTAINERS[type(node)], items=items, taint=taints_of(*items), origin=origins_of(*items)
        )

    def _evaluate_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        names_before = dict(self.scope.names)
        conditions_before = len(self.conditions)
        with self.at_position(self.position):  # restores it: each generator moves on into one more loop
            for generator in node.generators:
                self.assign(generator.target, self.element(self.value(generator.iter), generator.iter))
                self.position = self.position.in_loop(self.number())
                for test in generator.ifs:
                    self.conditions.append(self.value(test).origin)
            if isinstance(node, ast.DictComp):
                parts = [self.value(node.key), self.value(node.value)]
            else:
                parts = [self.value(node.elt)]
        del self.conditions[conditions_before:]
        self.scope.names = names_before
        return Value(text="[…]", tag="list", items=(parts[-1],), taint=taints_of(*parts), origin=origins_of(*parts))

    # -- in the other parts of the walk

    @abstractmethod
    def call(self, node: ast.Call) -> Value: ...

    @abstractmethod
    def evaluate_yield(self, node: ast.Yield) -> Value: ...

    @abstractmethod
    def assign(self, target: ast.expr, value: Value) -> None: ...

    @abstractmethod
    def element(self, iterable: Value, node: ast.AST) -> Value: ...


def candidates_of(value: Value) -> tuple[Value, ...]:
    """The functions that a value may be, where it is a table of handlers or an entry of one; else the value itself."""
    if value.items and (value.tag == "one of" or all(item.function for item in value.items)):
        return value.items
    return (value,)


def _is_concrete(value: Value) -> bool:
    """Whether more is known of a value than an abstract interface.

    In `gateway or StripeGateway()` the first operand is only that.
    """
    return value.is_known() and not (value.instance is not None and value.instance.cls.abstract_methods)


def _is_number(value: Value) -> bool:
    return isinstance(value.literal, int | float) and not isinstance(value.literal, bool)


def _fold_arithmetic(op: ast.operator, left: object, right: object) -> object:
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if abs(left) > _MAX_FOLDED_NUMBER or abs(right) > _MAX_FOLDED_NUMBER:
        return UNKNOWN_LITERAL
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    return UNKNOWN_LITERAL
