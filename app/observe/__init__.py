"""Observability of the management plane: the event bus, metrics, logs and spans.

It makes no decisions. Every layer above `app.store` may import it."""
