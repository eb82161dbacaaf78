"""Evaluates expressions. A value inherits taints and origins from its parts."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace

from .name_resolution import NameResolver
from .values import UNKNOWN, Function, Operation, Value
from .walk_state import FuelExhausted, origins_of, taints_of

_CONTAINERS = {ast.List: "list", ast.Tuple: "tuple", ast.Set: "set"}


class ExpressionWalker(NameResolver):
    """Turns syntax into values."""

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
                return Value(text=repr(node.value)[:80], literal=node.value)
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
        """A value of a kind that nothing more is known of: it depends on what it is made of."""
        parts = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Value(text=f"<{type(node).__name__.lower()}>", taint=taints_of(*parts), origin=origins_of(*parts))

    # -- literals and what is built of others

    def _evaluate_fstring(self, node: ast.JoinedStr) -> Value:
        parts, shape, texts = [], [], []
        for each in node.values:
            if isinstance(each, ast.Constant):
                shape.append(str(each.value))
                texts.append(str(each.value))
            elif isinstance(each, ast.FormattedValue):
                value = self.value(each.value)
                parts.append(value)
                shape.append(value.literal if isinstance(value.literal, str) else "{}")
                texts.append("{" + value.text + "}")
        return Value(
            text=self.text("f", *texts), literal="".join(shape), taint=taints_of(*parts), origin=origins_of(*parts)
        )

    def _evaluate_binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        literal: object = UNKNOWN
        if isinstance(node.op, ast.Add) and (left.string is not None or right.string is not None):
            literal = (left.string if left.string is not None else "{}") + (
                right.string if right.string is not None else "{}"
            )
        elif isinstance(node.op, ast.Mod) and left.string is not None:
            literal = left.string
        elif _is_number(left) and _is_number(right):
            literal = _fold_arithmetic(node.op, left.literal, right.literal)
        items = (*left.items, *right.items) if isinstance(node.op, ast.Add) else ()
        if isinstance(node.op, ast.BitOr) and left.ref and right.literal is None:
            return left
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
        parts = [self.value(each) for each in node.values]
        if isinstance(node.op, ast.Or):
            # `message.id or uuid4()`: what it is as a rule, not what it is for want of better
            first = next((each for each in parts if _is_concrete(each) or each.taint), parts[0])
            return replace(first, origin=origins_of(*parts))
        return Value(text=self.text(*(each.text for each in parts)), taint=taints_of(*parts), origin=origins_of(*parts))

    def _evaluate_conditional(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        number = self.number()
        values = []
        for arm, part in enumerate((node.body, node.orelse)):
            before = self.arms
            self.arms = (*before, (number, arm))
            self.conditions.append(test.origin)
            values.append(self.value(part))
            self.conditions.pop()
            self.arms = before
        found = next((each for each in values if _is_concrete(each) and each.literal is not None), values[0])
        return replace(found, taint=values[0].taint, origin=origins_of(test, *values))

    def _evaluate_comparison(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        rights = [self.value(each) for each in node.comparators]
        found = origins_of(left, *rights)
        if isinstance(node.ops[0], ast.In | ast.NotIn):
            found += self.emit_lookup(rights[0], left, node)
        return Value(
            text=self.text(left.text, "~", *(each.text for each in rights)),
            taint=taints_of(left, *rights),
            origin=found,
        )

    def emit_lookup(self, container: Value, key: Value, node: ast.expr) -> tuple[Operation, ...]:
        """`id in seen`: a check on what this process remembers."""
        if container.tag not in ("set", "dict", "list", "deque") or container.literal is not UNKNOWN:
            return ()
        if not self.outlives(container):
            return ()
        return (self.emit("read", node, text=f"in {container.text}", store="memory", location=container.text, key=key),)

    def outlives(self, container: Value) -> bool:
        """Whether a container is there from one message to the next: it is not a local of the handler."""
        name = container.text.partition(".")[0].partition("[")[0]
        return self.scope.names.get(name) is None or name == "self"

    def _evaluate_unary(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        literal: object = UNKNOWN
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
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each)
            values.append(value)
            name = self.value(key) if key is not None else None
            if name is None:
                fields.update(value.fields or {})
            elif isinstance(name.literal, str):
                fields[name.literal] = value
            else:
                fields[f"<{name.text}>"] = value
        return Value(text="{…}", tag="dict", fields=fields, taint=taints_of(*values), origin=origins_of(*values))

    def _evaluate_sequence(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        items = tuple(self.value(each) for each in node.elts)
        text = self.text("(", ",".join(each.text for each in items), ")")
        return Value(
            text=text, tag=_CONTAINERS[type(node)], items=items, taint=taints_of(*items), origin=origins_of(*items)
        )

    def _evaluate_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        before = dict(self.scope.names)
        loops = self.loops
        conditions = len(self.conditions)
        for generator in node.generators:
            self.assign(generator.target, self.element(self.value(generator.iter), generator.iter))
            self.loops = (*self.loops, self.number())
            for test in generator.ifs:
                self.conditions.append(self.value(test).origin)
        if isinstance(node, ast.DictComp):
            parts = [self.value(node.key), self.value(node.value)]
        else:
            parts = [self.value(node.elt)]
        del self.conditions[conditions:]
        self.loops = loops
        self.scope.names = before
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
    """The functions that a value may be: an entry of a table of handlers."""
    if value.items and (value.tag == "one of" or all(each.function for each in value.items)):
        return value.items
    return (value,)


def _is_concrete(value: Value) -> bool:
    """Whether anything is known of a value but an interface: `gateway or StripeGateway()` is the latter."""
    return value.is_known() and not (value.instance is not None and value.instance.cls.abstract_methods)


def _is_number(value: Value) -> bool:
    return isinstance(value.literal, int | float) and not isinstance(value.literal, bool)


def _fold_arithmetic(op: ast.operator, left: object, right: object) -> object:
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if abs(left) > 1e12 or abs(right) > 1e12:
        return UNKNOWN
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    return UNKNOWN
