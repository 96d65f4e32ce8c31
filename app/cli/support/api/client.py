"""API client of the command line: returns answers as dicts, and reports failures as one sentence with an exit code."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec
from urllib.parse import quote, urlsplit

import click
import msgspec

from app.cli.support import exit_codes
from app.cli.support.api import http
from app.cli.support.credentials import contexts, stored_tokens
from app.cli.support.exit_codes import Unreachable
from app.cli.support.keys import seconds, together
from app.cli.support.printing.terminal import exact
from app.settings import load
from dataplane.base.addresses import http_url
from dataplane.base.settings import TIMEOUT_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE
from dataplane.base.visible import plain

TIMEOUT_S = 60.0
MAX_URL_SHOWN = 80
"""Length in characters."""
PAGE = 1000
"""Largest number of items in one answer."""

_TIMEOUT = "larder.timeout_s"
P = ParamSpec("P")


def _keep_timeout(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        limit = seconds(f"--timeout ({TIMEOUT_VARIABLE})", value)
        if not limit:
            raise click.UsageError("--timeout: expected more than 0 seconds")
        ctx.meta[_TIMEOUT] = limit


url_option = together(
    click.option(
        "--url",
        help=f"URL of the API; default {URL_VARIABLE}, the context in use, or the settings. {TOKEN_VARIABLE} is "
        "the token.",
    ),
    contexts.context_option,
    click.option(
        "--timeout",
        metavar="TIME",
        envvar=TIMEOUT_VARIABLE,
        show_envvar=True,
        expose_value=False,
        callback=_keep_timeout,
        help="Wait at most this long for an answer, such as 5s; default 60s.",
    ),
)
"""Adds `--url`, `--context` and `--timeout`. The timeout applies only to `call` and `stream`."""


def _timeout_s() -> float:
    context = click.get_current_context(silent=True)
    return TIMEOUT_S if context is None else float(context.meta.get(_TIMEOUT, TIMEOUT_S))


wait_option = click.option(
    "--wait",
    metavar="TIME",
    default="2s",
    show_default=True,
    help="Wait for the nodes to acknowledge, at most this long.",
)


class ApiError(click.ClickException):
    """An error answer of the API: its message, its status, and the invalid fields with `path` and `message`."""

    def __init__(self, message: str, status: int, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(plain(message))
        self.exit_code = exit_codes.of_status(status)  # type: ignore[misc]  # click declares it for the class
        self.status = status
        self.errors = [{name: plain(text) for name, text in error.items()} for error in errors]


def as_token(token: str) -> dict[str, str]:
    """Return the Authorization header for a token. Raises ClickException for a token that a header cannot carry."""
    if not (token.isascii() and token.isprintable()):
        raise click.ClickException("the token has characters that no token has; see LARDER_TOKEN and 'larder login'")
    return {"Authorization": f"Bearer {token}"}


def _proof(base: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers with a token: of the context that `--context` names, else of the environment, else of the
    current context or `larder login`. The token of a context is sent to its URL alone."""
    sent = dict(headers or {})
    if "Authorization" in sent:
        return sent
    named = contexts.named()
    token = named.token if named is not None and named.url == base else ""
    token = token or os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:  # the file is read only if its content can matter
        current = contexts.current()
        token = current.token if current is not None and current.url == base else ""
    token = token or stored_tokens.get(base)
    return {**sent, **as_token(token)} if token else sent


def segment(name: str, of: str = "") -> str:
    """Return a name as one segment of a path, also if it consists of dots. `of` is the type of the named thing, for the
    message. Raises UsageError for an empty name."""
    if not name:
        hint = "; the tenant of the empty salt is _default" if of == "tenant" else ""
        raise click.UsageError(f"expected {f'the name of a {of}' if of else 'a name'}, got an empty text{hint}")
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        raise click.UsageError(f"expected a name in UTF-8, got {name!r}") from None
    return quoted.replace(".", "%2E") if name in (".", "..") else quoted


def _encoded(body: Mapping[str, Any] | None) -> bytes | None:
    """Return the body as JSON. Raises ClickException for text that is not UTF-8 and for numbers that are not finite."""
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise click.ClickException("expected text in UTF-8") from None
    except ValueError:
        raise click.ClickException("expected finite numbers") from None


def call(
    url: str | None,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, str | Sequence[str] | None] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Return the JSON of the answer, or None when it has none. `timeout_s` replaces `--timeout`. Raises ClickException
    with the problem's detail."""
    limit_s = _timeout_s() if timeout_s is None else timeout_s
    base = base_url(url)
    parameters = {name: value for name, value in (query or {}).items() if value is not None}
    content = _encoded(body)
    kind = {} if content is None else {"Content-Type": "application/json"}
    try:
        response = http.request(
            method, base + path, {**_proof(base, headers), **kind}, query=parameters, content=content, timeout_s=limit_s
        )
    except UnicodeEncodeError:
        raise click.ClickException("expected text in UTF-8") from None
    except http.TimedOut:
        raise Unreachable(
            f"{base} did not answer within {limit_s:g} s (--timeout); a change may still have been made"
            if method != "GET"
            else f"{base} did not answer within {limit_s:g} s{'' if timeout_s else ' (--timeout)'}"
        ) from None
    except http.RequestFailed as error:
        raise Unreachable(f"no Larder answers at {base} ({error}); start one with 'larder up'") from None
    if response.is_success:
        return _decoded(response, base) if response.content else None
    raise ApiError(_sentence(response, base), response.status, _faults(response))


ANY_STATE = {"If-Match": "*"}
"""Headers of a change that applies to any state of the record."""


def state_headers(record: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the headers for a change that is based on the record that `find` returned, so that no concurrent change is
    overwritten."""
    return {"If-None-Match": "*"} if record is None else {"If-Match": record["etag"]}


def every(
    url: str | None,
    path: str,
    query: Mapping[str, str | Sequence[str] | None] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    sort: str | None = None,
) -> Any:
    """Return the items and the `failed_nodes` of all pages of a list, at most `limit` items. The other fields, such as
    `total` and `next_cursor`, are those of the last page. Raises ClickException."""
    read = list(pages(url, path, {"sort": sort, **(query or {})}, limit, cursor))
    joined = {"items", "failed_nodes"} & read[-1].keys()
    return {**read[-1], **{name: [each for page in read for each in page[name]] for name in joined}}


def pages(
    url: str | None,
    path: str,
    query: Mapping[str, str | Sequence[str] | None],
    limit: int | None = None,
    cursor: str | None = None,
) -> Iterator[Any]:
    """Yield the pages of a list, with at most `limit` items together. Raises ClickException."""
    count = 0
    while True:
        page_limit = PAGE if limit is None else min(PAGE, limit - count)
        page = call(url, "GET", path, None, {**query, "limit": str(page_limit), "cursor": cursor})
        yield page
        count, cursor = count + len(page["items"]), page["next_cursor"]
        if not cursor or (limit is not None and count >= limit):
            return


def find(url: str | None, path: str) -> Any:
    """Return the resource at a path, or None. Raises ClickException."""
    return unless(404, call, url, "GET", path)


def unless(status: int, ask: Callable[P, Any], *arguments: P.args, **options: P.kwargs) -> Any:
    """Return the answer to a request, or None if its status is this one, such as 403 for callers who may not see it.
    Raises ClickException."""
    try:
        return ask(*arguments, **options)
    except ApiError as refused:
        if refused.status == status:
            return None
        raise


def stream(
    url: str | None,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str] | None = None,
    silence_s: float | None = None,
) -> Iterator[bytes]:
    """Yield a long answer in parts. `silence_s` replaces `--timeout`. Raises ClickException, also if the answer breaks
    off."""
    base = base_url(url)
    timeout_s = _timeout_s() if silence_s is None else silence_s
    try:
        with http.opened("GET", base + path, _proof(base, headers), query=query, timeout_s=timeout_s) as answer:
            if not 200 <= answer.status < 300:
                response = http.Response(answer.status, answer.read())
                raise ApiError(_sentence(response, base), response.status)
            yield from http.parts(answer)
    except http.RequestFailed as error:
        raise Unreachable(f"{base} did not answer to the end: {error}") from None


def base_url(url: str | None) -> str:
    """Return the URL of the API without a trailing slash: the option, else the URL of the context that `--context`
    names, of the environment, of the current context, or of the settings. Raises UsageError for an unusable URL."""
    named = contexts.named()
    if url and named is not None:
        raise click.UsageError("expected at most one of --url and --context")
    configured = url or (named.url if named is not None else "") or os.environ.get(URL_VARIABLE, "")
    if configured:
        return checked_url(configured)
    current = contexts.current()
    return default_url() if current is None else current.url


def checked_url(url: str) -> str:
    """Return a URL without a trailing slash. Raises UsageError for an unusable URL."""
    base = url.rstrip("/")
    try:
        parts = urlsplit(base)
        port = parts.port  # raises for a port that is too large
        host = (parts.hostname or "").encode("idna").decode("idna")
    except ValueError:  # UnicodeError, a ValueError, is an invalid host name
        host, port, parts = "", None, urlsplit("")
    is_web = parts.scheme in ("http", "https") and bool(host) and port != 0
    if not is_web or not base.isprintable() or "?" in base or "#" in base:  # paths are appended
        shown = base if len(base) <= MAX_URL_SHOWN else f"{base[:MAX_URL_SHOWN]}…"
        raise click.UsageError(f"--url ({URL_VARIABLE}): expected a URL such as http://127.0.0.1:8470, got {shown!r}")
    return base


def default_url() -> str:
    """Return the URL of the Larder that runs with these settings on this machine. Raises SettingsError."""
    common = load(environ=os.environ).common
    return http_url(common.http_host, common.http_port)


def _decoded(response: http.Response, base: str) -> Any:
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        raise click.ClickException(f"{base} gave an answer that is not JSON: it is not a Larder") from None


def _sentence(response: http.Response, base: str) -> str:
    try:
        sentence = str(json.loads(response.content)["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{base} answered {response.status}: it is not a Larder"
    if response.status == 401 and "larder login" not in sentence:
        return f"{sentence}; 'larder login --url {base}' stores a valid token"
    return sentence


def _faults(response: http.Response) -> list[dict[str, str]]:
    try:
        return [
            {"path": str(error["path"]), "message": str(error["message"])}
            for error in json.loads(response.content)["errors"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def print_json(answer: Any) -> None:
    exact([msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n"])
