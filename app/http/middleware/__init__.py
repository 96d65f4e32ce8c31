"""The ASGI layers around every route: request id, principal, headers, access log, limits, disconnects, conditional
requests. `stack` combines them."""
