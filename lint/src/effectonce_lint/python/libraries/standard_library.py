"""The standard library: functions that convert a value, and functions that generate one (random numbers, clocks)."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.taints import DIGEST, PAYLOAD, unstable_taint
from effectonce_lint.python.values import UNKNOWN_LITERAL, Effect, Value
from effectonce_lint.python.walk_state import BUILTINS, origins_of, taints_of
from effectonce_lint.word_lists import word_set

from . import value_methods

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_GENERATORS = word_set(
    "uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 secrets.token_hex secrets.token_urlsafe secrets.token_bytes"
    " os.urandom secrets.randbits random.random random.randint random.choice random.choices random.getrandbits"
    " random.randbytes random.uniform shortuuid.uuid ulid.new ulid.ULID nanoid.generate cuid.cuid ksuid.ksuid"
    " uuid_utils.uuid4 uuid_utils.uuid7 uuid6.uuid7 bson.ObjectId celery.utils.uuid"
    " django.utils.crypto.get_random_string time.time time.time_ns time.monotonic time.perf_counter"
    " datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today django.utils.timezone.now pendulum.now"
    " arrow.now arrow.utcnow"
)
"""Functions that return a new value with each call."""
_PROCESS_LOCAL = word_set("builtins.id builtins.hash builtins.object")
_HASH_FUNCTIONS = word_set(
    "sha256 sha1 sha512 md5 blake2b blake2s sha3_256 sha224 sha384 new xxh64 xxh3_64 murmur3 crc32 adler32"
)
_HASH_LIBRARIES = word_set("hashlib xxhash mmh3 zlib hmac")
#: Functions of the standard library and of codecs that only convert a value.
_CONVERSIONS = word_set(
    "str repr bytes int float format ascii tuple list set frozenset dict sorted reversed bytearray iter Decimal UUID"
    " uuid5 uuid3 loads dumps load dump b64encode b64decode urlsafe_b64encode urlsafe_b64decode hexlify quote deepcopy"
    " copy asdict decode encode canonicalize validate_json model_validate model_validate_json parse_obj parse_raw"
    " fromisoformat SimpleNamespace cast unhexlify convert from_json to_json jsonable_encoder force_str force_bytes"
    " smart_str packb unpackb zip_longest zip chain islice filter dedent escape deserialize serialize parse"
)
_IDENTITY_CONVERSIONS = word_set("list tuple set iter reversed sorted str int deepcopy copy frozenset cast")
"""The conversions whose result still has the items and fields of their argument."""
_CODECS = word_set("orjson ujson simplejson msgspec pydantic msgpack fastapi django")
_PREDICATES = word_set("any all bool len isinstance min max sum")
_TEXT_WRAPPERS = word_set(
    "sqlalchemy.text sqlalchemy.sql.text sqlmodel.text textwrap.dedent inspect.cleandoc psycopg.sql.SQL"
    " psycopg2.sql.SQL"
)
_OPEN_FUNCTIONS = word_set("builtins.open io.open aiofiles.open codecs.open gzip.open")
_EXIT_FUNCTIONS = word_set("sys.exit os._exit os.abort builtins.exit builtins.quit")
_CLOSERS = word_set("contextlib.closing contextlib.aclosing contextlib.nullcontext")
_CONTAINERS = {
    "builtins.set": "set",
    "builtins.frozenset": "set",
    "builtins.list": "list",
    "builtins.dict": "dict",
    "collections.deque": "deque",
    "collections.defaultdict": "dict",
    "collections.OrderedDict": "dict",
    "cachetools.TTLCache": "dict",
    "cachetools.LRUCache": "dict",
}
#: In the order of timedelta's parameters.
_SECONDS_PER_UNIT = {
    "days": 86400.0,
    "seconds": 1.0,
    "microseconds": 1e-6,
    "milliseconds": 1e-3,
    "minutes": 60.0,
    "hours": 3600.0,
    "weeks": 604800.0,
}
_STDLIB = frozenset(sys.stdlib_module_names) | {"builtins"}
_WITH_EFFECTS = tuple(
    word_set(
        "smtplib. urllib.request. subprocess. ftplib. asyncio. threading. http.client sqlite3. multiprocessing."
        " concurrent. queue."
    )
)
"""Parts of the standard library whose effects leave the function that calls them."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    """Interpret a call of the standard library, or of a method of a plain value; None for other calls."""
    if (appended := _interpret_append(walk, call)) is not None:
        return appended
    if call.target.tag == "namedtuple":
        fields = dict(zip(call.target.fields or {}, call.args, strict=False)) | call.keywords
        text = _text_of_call(walk, call.target.text, call)
        return Value(
            text=text, tag="tuple", items=tuple(fields.values()), fields=fields, taint=taints_of(*call.all_arguments())
        )
    return _interpret_function(walk, call) if call.ref else value_methods.interpret_call(walk, call)


def _text_of_call(walk: CallWalker, function: str, call: Call) -> str:
    return walk.text(function, "(", ",".join(argument.text for argument in call.all_arguments()), ")")


def _interpret_function(walk: CallWalker, call: Call) -> Value | None:
    ref, last = call.ref, call.name
    text = _text_of_call(walk, ref, call)
    if ref in _GENERATORS:
        return Value(text=text, taint=frozenset({unstable_taint(f"{last}()")}))
    if ref in _PROCESS_LOCAL:
        taint = unstable_taint(f"{last}(), which differs between processes")
        return Value(text=text, taint=taints_of(*call.all_arguments()) | {taint})
    if ref in _OPEN_FUNCTIONS:
        mode = call.argument(1, "mode")
        return Value(text=text, tag="file.append" if mode is not None and "a" in (mode.string or "") else "file")
    if ref in _CONTAINERS and (not call.args or not ref.startswith("builtins.")):
        return Value(text=text, tag=_CONTAINERS[ref], fields=dict(call.keywords) if last == "dict" else None)
    if ref in _EXIT_FUNCTIONS:
        walk.emit("raise", call.node)
        return Value()
    if ref == "collections.namedtuple":
        return _make_named_tuple(call, text)
    if ref == "datetime.timedelta":
        return Value(text=text, literal=_timedelta_seconds(call))
    if ref == "contextlib.suppress":
        return Value(text=text, tag="suppress", items=call.args)
    if ref == "builtins.super":
        return _make_super(walk)
    return _interpret_first_argument(walk, call, text) if call.args else _combine_arguments(call, text)


def _interpret_first_argument(walk: CallWalker, call: Call, text: str) -> Value | None:
    """Interpret a function whose result is its first argument, or a part of it."""
    ref, first = call.ref, call.args[0]
    if ref in _TEXT_WRAPPERS or ref in _CLOSERS:
        return first
    if ref in ("functools.partial", "functools.partialmethod"):
        return _make_partial(call)
    if ref == "builtins.next":
        return walk.element(first, call.node)
    if ref == "builtins.enumerate":
        pair = Value(tag="tuple", items=(Value(text="#"), walk.element(first, call.node)), taint=first.taint)
        return Value(text=text, tag="list", items=(pair,), taint=first.taint)
    if ref == "builtins.getattr" and len(call.args) > 1 and call.args[1].string is not None:
        return _interpret_getattr(walk, first, call.args[1].string)
    return _combine_arguments(call, text)


def _interpret_getattr(walk: CallWalker, base: Value, name: str) -> Value:
    """`getattr(handlers, f"on_{kind}")` is one of the methods whose name fits."""
    if "{}" not in name or base.instance is None:
        return walk.attribute(base, name)
    pattern = re.compile(".*".join(map(re.escape, name.split("{}"))))
    names = [method for method in base.instance.cls.methods if pattern.fullmatch(method)]
    methods = tuple(walk.attribute(base, method) for method in names)
    return Value(text=walk.text(base.text, ".", name), tag="one of" if methods else "", items=methods)


def _combine_arguments(call: Call, text: str) -> Value | None:
    """Interpret a function that computes its result from its arguments."""
    ref, last, top = call.ref, call.name, call.ref.partition(".")[0]
    taint, origin = taints_of(*call.all_arguments()), origins_of(*call.args)
    if top == "builtins" and last in _PREDICATES:
        return Value(text=text, origin=origin)
    if top in _HASH_LIBRARIES and last in _HASH_FUNCTIONS:
        return Value(text=text, taint=taint_of_hash(taint))
    if last in _CONVERSIONS and (top in _STDLIB or (top in _CODECS and last not in BUILTINS)):
        source = Value()
        if call.args:
            source = call.args[-1] if last == "cast" else call.args[0]
        if last in _IDENTITY_CONVERSIONS and source.is_known():
            return replace(source, taint=taint, origin=origin)
        return Value(text=text, taint=taint, origin=origin)
    if top in _STDLIB and not ref.startswith(_WITH_EFFECTS):
        return Value(text=text, taint=taint - {PAYLOAD}, origin=origin)
    return None


def taint_of_hash(taint: frozenset[str]) -> frozenset[str]:
    """The taint of a hash of a value with ``taint``: the hash of a whole payload is a digest."""
    return (taint - {PAYLOAD}) | {DIGEST} if PAYLOAD in taint else taint


def _make_named_tuple(call: Call, text: str) -> Value:
    """`namedtuple("Route", "kind run")`, with the names of its fields."""
    field_names = call.argument(1, "field_names") or Value()
    names = (field_names.string or "").replace(",", " ").split() or [item.string or "?" for item in field_names.items]
    return Value(text=text, tag="namedtuple", fields={name: Value(text=name) for name in names})


def _timedelta_seconds(call: Call) -> object:
    """The seconds of a timedelta; UNKNOWN_LITERAL if not all of its arguments are literals."""
    total = 0.0
    for name, value in (*zip(_SECONDS_PER_UNIT, call.args, strict=False), *call.keywords.items()):
        if not isinstance(value.literal, int | float) or name not in _SECONDS_PER_UNIT:
            return UNKNOWN_LITERAL
        total += value.literal * _SECONDS_PER_UNIT[name]
    return total


def _make_partial(call: Call) -> Value:
    """`functools.partial(function, …)`: the function with the arguments that are bound to it."""
    first, *rest = call.args
    if first.function is None:
        return first
    function = first.function
    names = {**function.bound_names, **call.keywords}
    return replace(first, function=replace(function, bound=(*function.bound, *rest), bound_names=names))


def _make_super(walk: CallWalker) -> Value:
    """`super()`: the current object as an instance of its base class."""
    owner = walk.scope.owner
    for base in walk.bases(owner) if owner is not None else ():
        if base.cls is not None:
            return walk.instance_of(base.cls, (), {}, "self")
    return Value(text="super()")


def _interpret_append(walk: CallWalker, call: Call) -> Value | None:
    """Emit the effect of a call that appends to a file, or follow the file through `open` and `csv.writer`."""
    is_write = call.tag == "file.append" and call.name in ("write", "writelines", "writerow", "writerows")
    is_print = call.ref in ("builtins.print", "json.dump") and any(
        argument.tag == "file.append" for argument in call.all_arguments()
    )
    if is_write or is_print:
        walk.emit("effect", call.node, text=call.source_text, effect=Effect("append", "appends to a file"))
        return Value()
    if call.ref in ("csv.writer", "csv.DictWriter") and call.args and call.args[0].tag == "file.append":
        return call.args[0]
    if call.name == "open" and not call.ref and call.target.function is None:  # Path.open
        mode = call.argument(0, "mode")
        if mode is not None and mode.string in ("a", "at", "ab", "a+"):
            return Value(text=f"{call.source_text}()", tag="file.append")
    return None
