"""One module per resource, grouped by subject. A route decodes the request, calls a service and encodes the answer."""
