"""The standard library: which functions pass a value on, and which generate one (random numbers, clocks)."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from effectonce_lint.python.values import UNKNOWN, Effect, Value
from effectonce_lint.python.walk_state import BUILTINS, origins_of, taints_of
from effectonce_lint.word_lists import word_set

from . import value_methods
from .message_parts import PAYLOAD

if TYPE_CHECKING:
    from effectonce_lint.python.calls import Call, CallWalker

_MADE_UP = word_set(
    "uuid.uuid1 uuid.uuid4 uuid.uuid6 uuid.uuid7 secrets.token_hex secrets.token_urlsafe secrets.token_bytes"
    " os.urandom secrets.randbits random.random random.randint random.choice random.choices random.getrandbits"
    " random.randbytes random.uniform shortuuid.uuid ulid.new ulid.ULID nanoid.generate cuid.cuid ksuid.ksuid"
    " uuid_utils.uuid4 uuid_utils.uuid7 uuid6.uuid7 bson.ObjectId celery.utils.uuid"
    " django.utils.crypto.get_random_string time.time time.time_ns time.monotonic time.perf_counter"
    " datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today django.utils.timezone.now pendulum.now"
    " arrow.now arrow.utcnow"
)
"""What gives another value each time that it is called."""
_PER_PROCESS = word_set("builtins.id builtins.hash builtins.object")
_HASHES = word_set(
    "sha256 sha1 sha512 md5 blake2b blake2s sha3_256 sha224 sha384 new xxh64 xxh3_64 murmur3 crc32 adler32"
)
_HASHERS = word_set("hashlib xxhash mmh3 zlib hmac")
#: What only gives a value another form: of the standard library, and of codecs.
_FORMS = word_set(
    "str repr bytes int float format ascii tuple list set frozenset dict sorted reversed bytearray iter Decimal UUID"
    " uuid5 uuid3 loads dumps load dump b64encode b64decode urlsafe_b64encode urlsafe_b64decode hexlify quote deepcopy"
    " copy asdict decode encode canonicalize validate_json model_validate model_validate_json parse_obj parse_raw"
    " fromisoformat SimpleNamespace cast unhexlify convert from_json to_json jsonable_encoder force_str force_bytes"
    " smart_str packb unpackb zip_longest zip chain islice filter dedent escape deserialize serialize parse"
)
_SAME = word_set("list tuple set iter reversed sorted str int deepcopy copy frozenset cast")
"""Of those: what leaves a value what it is."""
_CODECS = word_set("orjson ujson simplejson msgspec pydantic msgpack fastapi django")
_ABOUT = word_set("any all bool len isinstance min max sum")
_TEXTS = word_set(
    "sqlalchemy.text sqlalchemy.sql.text sqlmodel.text textwrap.dedent inspect.cleandoc psycopg.sql.SQL"
    " psycopg2.sql.SQL"
)
_OPENS = word_set("builtins.open io.open aiofiles.open codecs.open gzip.open")
_EXITS = word_set("sys.exit os._exit os.abort builtins.exit builtins.quit")
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
_UNITS = {
    "days": 86400.0,
    "seconds": 1.0,
    "microseconds": 1e-6,
    "milliseconds": 1e-3,
    "minutes": 60.0,
    "hours": 3600.0,
    "weeks": 604800.0,
}
_STDLIB = frozenset(sys.stdlib_module_names) | {"builtins"}
_REACHING_OUT = tuple(
    word_set(
        "smtplib. urllib.request. subprocess. ftplib. asyncio. threading. http.client sqlite3. multiprocessing."
        " concurrent. queue."
    )
)
"""Parts of the standard library whose effects leave the function that calls them."""


def interpret_call(walk: CallWalker, call: Call) -> Value | None:
    if (found := _interpret_append(walk, call)) is not None:
        return found
    if call.target.tag == "namedtuple":
        fields = dict(zip(call.target.fields or {}, call.args, strict=False)) | call.keywords
        text = walk.text(call.target.text, "(", ",".join(each.text for each in call.all_arguments()), ")")
        return Value(
            text=text, tag="tuple", items=tuple(fields.values()), fields=fields, taint=taints_of(*call.all_arguments())
        )
    return _interpret_function(walk, call) if call.ref else value_methods.interpret_call(walk, call)


def _interpret_function(walk: CallWalker, call: Call) -> Value | None:
    ref, last = call.ref, call.name
    text = walk.text(ref, "(", ",".join(each.text for each in call.all_arguments()), ")")
    if ref in _MADE_UP:
        return Value(text=text, taint=frozenset({f"unstable:{last}()"}))
    if ref in _PER_PROCESS:
        return Value(
            text=text, taint=taints_of(*call.all_arguments()) | {f"unstable:{last}(), which differs between processes"}
        )
    if ref in _OPENS:
        mode = call.argument(1, "mode")
        return Value(text=text, tag="file.append" if mode is not None and "a" in (mode.string or "") else "file")
    if ref in _CONTAINERS and (not call.args or not ref.startswith("builtins.")):
        return Value(text=text, tag=_CONTAINERS[ref], fields=dict(call.keywords) if last == "dict" else None)
    if ref in _EXITS:
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
    """Functions that give what their first argument is, or a part of it."""
    ref, first = call.ref, call.args[0]
    if ref in _TEXTS or ref in _CLOSERS:
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
    """`getattr(handlers, f"on_{kind}")`: any method that fits."""
    if "{}" not in name or base.instance is None:
        return walk.attribute(base, name)
    fits = re.compile(".*".join(map(re.escape, name.split("{}"))))
    found = tuple(walk.attribute(base, each) for each in base.instance.cls.methods if fits.fullmatch(each))
    return Value(text=walk.text(base.text, ".", name), tag="one of" if found else "", items=found)


def _combine_arguments(call: Call, text: str) -> Value | None:
    """Functions whose result is made of their arguments."""
    ref, last, top = call.ref, call.name, call.ref.partition(".")[0]
    taint, origin = taints_of(*call.all_arguments()), origins_of(*call.args)
    if top == "builtins" and last in _ABOUT:
        return Value(text=text, origin=origin)
    if top in _HASHERS and last in _HASHES:
        return Value(text=text, taint=taint_of_hash(taint))
    if last in _FORMS and (top in _STDLIB or (top in _CODECS and last not in BUILTINS)):
        source = call.args[-1] if last == "cast" and call.args else call.args[0] if call.args else Value()
        if last in _SAME and source.is_known():
            return replace(source, taint=taint, origin=origin)
        return Value(text=text, taint=taint, origin=origin)
    if top in _STDLIB and not ref.startswith(_REACHING_OUT):
        return Value(text=text, taint=taint - {PAYLOAD}, origin=origin)
    return None


def taint_of_hash(taint: frozenset[str]) -> frozenset[str]:
    """Of a hash: a payload goes in whole, a digest comes out."""
    return (taint - {PAYLOAD}) | {"digest"} if PAYLOAD in taint else taint


def _make_named_tuple(call: Call, text: str) -> Value:
    """`namedtuple("Route", "kind run")`, with what its fields are called."""
    given = call.argument(1, "field_names") or Value()
    names = (given.string or "").replace(",", " ").split() or [each.string or "?" for each in given.items]
    return Value(text=text, tag="namedtuple", fields={name: Value(text=name) for name in names})


def _timedelta_seconds(call: Call) -> object:
    """A timedelta that is written out, as seconds."""
    total = 0.0
    for name, value in (*zip(_UNITS, call.args, strict=False), *call.keywords.items()):
        if not isinstance(value.literal, int | float) or name not in _UNITS:
            return UNKNOWN
        total += value.literal * _UNITS[name]
    return total


def _make_partial(call: Call) -> Value:
    """A function with some of its arguments given."""
    first, *rest = call.args
    if first.function is None:
        return first
    function = first.function
    names = {**function.bound_names, **call.keywords}
    return replace(first, function=replace(function, bound=(*function.bound, *rest), bound_names=names))


def _make_super(walk: CallWalker) -> Value:
    owner = walk.scope.owner
    for base in walk.bases(owner) if owner is not None else ():
        if base.cls is not None:
            return walk.instance_of(base.cls, (), {}, "self")
    return Value(text="super()")


def _interpret_append(walk: CallWalker, call: Call) -> Value | None:
    """Writing to a file that was opened to append."""
    writes = call.tag == "file.append" and call.name in ("write", "writelines", "writerow", "writerows")
    prints = call.ref in ("builtins.print", "json.dump") and any(
        each.tag == "file.append" for each in call.all_arguments()
    )
    if writes or prints:
        walk.emit("effect", call.node, text=call.source_text, effect=Effect("append", "appends to a file"))
        return Value()
    if call.ref in ("csv.writer", "csv.DictWriter") and call.args and call.args[0].tag == "file.append":
        return call.args[0]
    if call.name == "open" and not call.ref and call.target.function is None:  # of a path
        mode = call.argument(0, "mode")
        if mode is not None and mode.string in ("a", "at", "ab", "a+"):
            return Value(text=f"{call.source_text}()", tag="file.append")
    return None
