"""Requests and answers of the API: one module per resource, strict msgspec structs. Times are Unix seconds, sizes
are bytes. The text below a field of a request describes it, in the API's description and in the help of commands.

Page requests and filters of lists are here too, because the store reads them. Schemas hold no rules; `app.services`
validates and fills them."""
