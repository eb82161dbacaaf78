"""The options for TLS, and which failures of TLS are a wrong configuration; without a server."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from effectonce.backends.common.tls import TLSOptions, take_tls, tls_refusal, tls_refusal_by_text
from effectonce.errors import ConfigurationError, InvalidOption
from effectonce.values.urls import Address
from tests.harness.certificates import Authority, Certificate

# -- options


def test_tls_is_on_where_the_url_the_scheme_or_the_default_says_so() -> None:
    assert take_tls(Address("x://h")) is None
    assert take_tls(Address("x://h?tls=yes")) == TLSOptions()
    assert take_tls(Address("x://h"), by_scheme=True) == TLSOptions()
    assert take_tls(Address("x://h"), default=True) == TLSOptions()
    assert take_tls(Address("x://h?tls=no"), default=True) is None


def test_all_options_are_read() -> None:
    assert take_tls(
        Address("x://h?tls=yes&ca_file=/ca&cert_file=/c&key_file=/k&verify=ca&server_name=shop")
    ) == TLSOptions(ca_file="/ca", cert_file="/c", key_file="/k", verify="ca", server_name="shop")


@pytest.mark.parametrize(("text", "verify"), [("yes", "yes"), ("true", "yes"), ("CA", "ca"), ("no", "no"), ("0", "no")])
def test_verify_is_yes_ca_or_no(text: str, verify: str) -> None:
    options = take_tls(Address(f"x://h?tls=yes&verify={text}"))
    assert options is not None
    assert options.verify == verify


@pytest.mark.parametrize("option", ["ca_file=/x", "cert_file=/x", "verify=no", "server_name=x"])
def test_an_option_for_tls_without_tls_is_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match="add tls=yes"):
        take_tls(Address(f"x://h?{option}"))


@pytest.mark.parametrize(
    ("query", "said"), [("tls=no", "leave one of them out"), ("key_file=/k", "add cert_file="), ("verify=maybe", "bad")]
)
def test_options_that_contradict_each_other_are_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        take_tls(Address(f"rediss://h?{query}"), by_scheme=True)


@pytest.mark.parametrize(
    ("verify", "checks_name", "mode"),
    [("yes", True, ssl.CERT_REQUIRED), ("ca", False, ssl.CERT_REQUIRED), ("no", False, ssl.CERT_NONE)],
)
def test_a_context_checks_what_the_options_say(verify: str, checks_name: bool, mode: ssl.VerifyMode) -> None:
    context = TLSOptions(verify=verify).make_context("x://h")  # type: ignore[arg-type]
    assert (context.check_hostname, context.verify_mode) == (checks_name, mode)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("shop")
    (tmp_path / "empty").touch()
    for options in (
        TLSOptions(ca_file=str(tmp_path / "none")),
        TLSOptions(ca_file=str(tmp_path / "empty")),
        TLSOptions(cert_file=str(issued.cert_file)),  # without its key
        TLSOptions(cert_file=str(issued.cert_file), key_file=str(tmp_path / "none")),
    ):
        with pytest.raises(InvalidOption, match="x://h cannot be used"):
            options.make_context("x://h")


def test_an_encrypted_key_is_refused_and_the_terminal_not_asked(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("shop", password="open sesame")
    with pytest.raises(InvalidOption, match="without a password"):
        TLSOptions(cert_file=str(issued.cert_file), key_file=str(issued.key_file)).make_context("x://h")


# -- failures, with a server in memory


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost") -> None:
    """Let both sides talk until they agree, or one of them raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for step in (ours.do_handshake, theirs.do_handshake):
            try:
                step()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                if step == ours.do_handshake:
                    raise
    try:
        ours.read(1)  # with TLS 1.3 the server's alert comes only now
    except ssl.SSLWantReadError:
        pass


def server_context(certificate: Certificate, client_authority: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def refusal(client: TLSOptions, server: ssl.SSLContext, name: str = "localhost") -> str:
    with pytest.raises(ssl.SSLError) as caught:
        shake_hands(client.make_context("x://h"), server, name)
    try:
        raise ConnectionError("the driver's own") from caught.value
    except ConnectionError as error:
        ours = tls_refusal(error, "x://h")
    assert isinstance(ours, ConfigurationError)
    return str(ours)


def test_an_untrusted_certificate_says_which_option_to_add(tmp_path: Path) -> None:
    server = server_context(Authority(tmp_path).issue("localhost"))
    assert "not trusted" in refusal(TLSOptions(), server)
    assert "add the authority that signed it as ca_file=" in refusal(TLSOptions(), server)


@pytest.mark.parametrize("name", ["shop.example", "10.0.0.1"])
def test_a_certificate_for_another_name_says_which_option_to_add(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    server = server_context(authority.issue("localhost"))
    assert "server_name=" in refusal(TLSOptions(ca_file=str(authority.ca_file)), server, name)


def test_server_name_stands_in_for_the_name_that_a_driver_gives(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = TLSOptions(ca_file=str(authority.ca_file), server_name="localhost")
    shake_hands(options.make_context("x://h"), server_context(authority.issue("localhost")), "10.0.0.1")


def test_an_expired_certificate_says_so(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = server_context(authority.issue("localhost", valid_for=-timedelta(days=1)))
    assert "not valid at this time" in refusal(TLSOptions(ca_file=str(authority.ca_file)), server)


def test_a_server_that_wants_a_certificate_of_the_client_says_which_options_to_add(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = server_context(authority.issue("localhost"), authority.ca_file)
    assert "cert_file= and key_file=" in refusal(TLSOptions(ca_file=str(authority.ca_file)), server)


def test_a_server_that_does_not_trust_the_clients_certificate_says_so(tmp_path: Path) -> None:
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    authority, stranger = Authority(tmp_path), Authority(strangers, "stranger").issue("shop")
    server = server_context(authority.issue("localhost"), authority.ca_file)
    options = TLSOptions(
        ca_file=str(authority.ca_file), cert_file=str(stranger.cert_file), key_file=str(stranger.key_file)
    )
    assert "does not accept this client's certificate" in refusal(options, server)


def test_a_connection_that_ends_during_the_handshake_is_an_outage() -> None:
    assert tls_refusal(ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "x://h") is None
    assert tls_refusal(ConnectionResetError("reset"), "x://h") is None
    assert tls_refusal(None, "x://h") is None


def test_errors_that_caused_each_other_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert tls_refusal(first, "x://h") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SSL error: certificate verify failed", "ca_file="),
        ("SSL error: provider signature failure", "ca_file="),  # another authority of the same name
        ('server certificate for "a" does not match host name "b"', "server_name="),
        ("SSL error: tlsv13 alert certificate required", "cert_file="),
        ("FATAL: connection requires a valid client certificate", "cert_file="),
    ],
)
def test_the_words_of_a_c_library_mean_the_same(text: str, said: str) -> None:
    assert said in str(tls_refusal_by_text(text, "x://h"))


def test_other_words_are_no_failure_of_tls() -> None:
    assert tls_refusal_by_text("connection refused", "x://h") is None
