"""The HTTP layer: request decoding, principals, problem details, the middleware stack, the routes, the API description
and the files of the dashboard.

It holds no business rules; `app.services` does. Services and the layers below must not import it."""
