"""Hosts and ports in settings, as sockets and URLs need them."""

import socket

import pytest

from dataplane.base.addresses import host_and_port, http_url, ip_of, is_host, without_brackets


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8470"),
        ("0.0.0.0", "http://127.0.0.1:8470"),
        ("0", "http://127.0.0.1:8470"),
        ("", "http://127.0.0.1:8470"),
        ("::", "http://[::1]:8470"),
        ("::0", "http://[::1]:8470"),
        ("::1", "http://[::1]:8470"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:8470"),
        ("larder.example", "http://larder.example:8470"),
    ],
)
def test_the_url_of_a_host_can_be_connected_to(host: str, url: str) -> None:
    assert http_url(host, 8470) == url
    assert is_host(host)
    assert http_url(without_brackets(f"[{host}]"), 8470) == url


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "0", "0177.1", "1.2.3", "010.0.0.1"]
)
def test_an_address_of_numbers_is_read_as_the_resolver_reads_it(text: str) -> None:
    assert str(ip_of(text)) == socket.inet_ntoa(socket.inet_aton(text))


@pytest.mark.parametrize(
    "text", ["unix:/x", "a b", "http://h", "::1]", "[::1", "256.1.1.1:80", "h:80", "fe80::1%", "a\n"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    assert not is_host(text)


def test_an_ipv6_address_gets_brackets() -> None:
    assert host_and_port("::1", 5) == host_and_port("[::1]", 5) == "[::1]:5"
