"""`python -m app.openapi`: the API's description as JSON, without starting anything."""

import json
import sys

from app.asgi import create_app
from app.http.description import document as described
from app.settings import AppSettings, Settings
from dataplane.protocol.settings import Common, with_defaults


def document() -> str:
    """The OpenAPI 3.1 document, the same on every machine."""
    settings = Settings(common=with_defaults(Common(state_dir="/nowhere"), {}), app=AppSettings())
    litestar = create_app(settings).litestar
    return json.dumps(described(litestar), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
