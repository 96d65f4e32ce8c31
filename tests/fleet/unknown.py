"""A peer on the network that asks to join, without a data plane."""

from __future__ import annotations

import itertools
from typing import Self

import zmq

from dataplane.protocol.join import VERSION, Join, JoinReply, JoinToken
from dataplane.sockets.curve import NodeKeyPair
from dataplane.sockets.join import JoinLink
from tests.e2e.larder import until
from tests.fleet.fleet import WAIT_S


def key_pair() -> NodeKeyPair:
    public, secret = zmq.curve_keypair()
    return NodeKeyPair(public.decode(), secret)


class UnknownNode:
    """Asks under a name, with a key and an address of its own: who fails too often is distinguished by its address."""

    _count = itertools.count()

    def __init__(self, name: str, pair: NodeKeyPair | None = None) -> None:
        self.name = name
        self.pair = pair or key_pair()
        number = next(self._count)
        self.address = f"127.1.{number // 250}.{number % 250 + 1}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._link: JoinLink | None = None

    def ask(self, token: JoinToken, port: int) -> None:
        """Does not wait."""
        self.shut_down()
        message = Join(
            version=VERSION,
            node=self.name,
            release="0",
            labels={},
            control_url="tcp://0.0.0.0:9",
            events_url="tcp://0.0.0.0:9",
            token=token.id,
            secret=token.secret,
        )
        url = f"tcp://{self.address}:0;127.0.0.1:{port}"
        self._link = JoinLink(self._context, url, token.key, self.pair, message)

    def answer(self) -> JoinReply:
        link = self._link
        assert link is not None
        return until(link.answer, f"{self.name} is answered", WAIT_S)

    def shut_down(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        self.shut_down()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
