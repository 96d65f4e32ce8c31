"""Connection over which a node joins: one request to one address, and its answer."""

from __future__ import annotations

import zmq

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.join import MAX_JOIN_BYTES, Join, JoinRefused, JoinReply
from dataplane.sockets.curve import NodeKeyPair

_decoder = decoder(JoinReply)


class JoinLink:
    """Sends one request. Only the holder of the secret of `server_key` can answer it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], url: str, server_key: str, pair: NodeKeyPair, message: Join
    ) -> None:
        """Connect and send the request. Raises ZMQError for an invalid URL."""
        self.url = url
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        try:
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_JOIN_BYTES)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 200)
            self._socket.setsockopt(zmq.IPV6, int("[" in url))
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
            self._socket.connect(url)
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            self._socket.close()
            raise

    def answer(self) -> JoinReply | None:
        """Return the answer; None if it has not arrived."""
        try:
            frame = self._socket.recv_multipart(zmq.NOBLOCK)[-1]
        except zmq.Again:
            return None
        try:
            reply: JoinReply = decode(_decoder, frame)
        except ProtocolError as error:
            return JoinRefused("malformed", f"the answer could not be read: {error.message}")
        return reply

    def close(self) -> None:
        self._socket.close()
