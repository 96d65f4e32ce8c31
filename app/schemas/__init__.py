"""Request and answer bodies of the API: one module per resource, strict msgspec structs. Times are Unix seconds, sizes
are bytes.

They hold no rules; `app.services` validates and fills them."""
