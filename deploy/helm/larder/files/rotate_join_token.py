"""Create a join token, write it into a secret, and revoke the tokens that this script created before.

The chart runs it as a Job with each install and upgrade. Variables: LARDER_URL, LARDER_TOKEN_FILE (an admin's token),
NAME (of the tokens), USES, TTL_S, LABELS (JSON), SECRET, SECRET_KEY, GRACE_S (seconds before the revocation, in which
pods that read the old token may join), KUBERNETES_URL, SERVICE_ACCOUNT (folder of the token, namespace and ca.crt of
the pod).
"""

import base64
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

READY_S = 300
env = os.environ
account = Path(env["SERVICE_ACCOUNT"])
admin = Path(env["LARDER_TOKEN_FILE"]).read_text().strip()


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: another host would get the token."""

    def redirect_request(self, *_):
        return None


def ask(method, url, token, body=None, kind="application/json", context=None):
    """Return the JSON of an answer. No proxy is used. Raises HTTPError, URLError."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    https = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects, https)
    with opener.open(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def larder(method, path, body=None):
    return ask(method, env["LARDER_URL"] + path, admin, body)


def until_ready():
    """Wait for a manager. Raises what it raises after READY_S seconds."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return larder("GET", "/api/v1/join-tokens")
        except (urllib.error.URLError, OSError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(1)


def write(text):
    """Write the token into the secret, which may be missing."""
    token, namespace = ((account / name).read_text().strip() for name in ("token", "namespace"))
    url = f"{env['KUBERNETES_URL']}/api/v1/namespaces/{namespace}/secrets"
    certificate = account / "ca.crt"
    context = ssl.create_default_context(cafile=str(certificate)) if certificate.exists() else None
    data = {env["SECRET_KEY"]: base64.b64encode(text.encode()).decode()}
    try:
        merge = "application/merge-patch+json"
        ask("PATCH", f"{url}/{env['SECRET']}", token, {"data": data}, merge, context)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": env["SECRET"]}, "data": data}
        ask("POST", url, token, secret, context=context)


before = [each["id"] for each in until_ready()["items"] if each["name"] == env["NAME"]]
limits = {"uses": int(env["USES"]), "ttl_s": float(env["TTL_S"]), "labels": json.loads(env["LABELS"])}
made = larder("POST", "/api/v1/join-tokens", {"name": env["NAME"], **limits})
write(made["token"])
sys.stdout.write(f"the secret {env['SECRET']} has the join token {made['record']['id']}\n")
if before:
    time.sleep(float(env["GRACE_S"]))
for ident in before:
    larder("DELETE", f"/api/v1/join-tokens/{ident}")
    sys.stdout.write(f"revoked the join token {ident}\n")
