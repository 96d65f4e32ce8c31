"""`python -m app.openapi`: print the API's OpenAPI document as JSON, without starting a server."""

import json
import sys

from app.asgi import create_app
from app.http.description import document as described
from app.settings import AppSettings, Settings
from dataplane.base.settings import Common, with_defaults


def document() -> str:
    """Return the OpenAPI 3.1 document, which is the same on every machine."""
    settings = Settings(common=with_defaults(Common(state_dir="/nowhere"), {}), app=AppSettings())
    litestar = create_app(settings).litestar
    return json.dumps(described(litestar), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
