"""A tiny server that plays the dashboard's fixtures: the built page, the API's reads, and the event stream.

It stands in for the app where a test needs a state that is hard to bring about for real. Every answer carries the
strict content security policy, so what works here works under it.
"""

import json
import mimetypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.threads import join

WEB = Path(__file__).parents[2] / "web"
DIST = WEB / "dist"
FIXTURES = WEB / "src" / "fixtures"
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
CONFIRM_INTERVAL_S = 1.0
LOOK_S = 0.05


API = ("/api/", "/healthz")

UNKNOWN: dict[str, Any] = {
    "type": "urn:larder:problem:unauthorized",
    "title": "Authentication is required",
    "status": 401,
}
LAST_PAGE: dict[str, Any] = {"items": [], "next_cursor": ""}
NOT_FOUND: dict[str, Any] = {"type": "about:blank", "title": "Not found", "status": 404}


QUOTA: dict[str, Any] = {
    "etag": '"1"',
    "generation": 1,
    "managed_by": "",
    "selector": None,
    "status": {"accepted": True, "applied": True, "nodes": {}, "conditions": []},
}
"""What the record of a quota has besides what the list of tenants tells."""


def listed(items: list[Any], total: int | None = None) -> dict[str, Any]:
    return {"items": items, "total": len(items) if total is None else total, "next_cursor": ""}


EMPTY = "alerts findings pushes managers policies tiers ipc tokens ceilings rates tokenizers events/history"
LISTS: dict[str, Any] = {
    **dict.fromkeys(EMPTY.split(), listed([])),
    "blocks": {"items": [], "failed_nodes": [], "next_cursor": ""},
    "sessions": {"items": [], "failed_nodes": [], "next_cursor": ""},
    "annotations": [],
}
"""Lists of the API of which a fixture may have nothing."""


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return loaded


@dataclass
class Play:
    """What is played now; a test changes it while the page runs."""

    overview: dict[str, Any]
    history: dict[str, Any]
    prefixes: dict[str, Any]
    usage: dict[str, Any]
    audit: dict[str, Any]
    session: dict[str, Any]
    """Who looks at the page."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Other lists of the API, by path; those that are not here are empty."""
    older: list[dict[str, Any]] = field(default_factory=list)
    """The second page of the audit log."""
    marks: list[dict[str, Any]] = field(default_factory=list)
    """In the charts."""
    locked: bool = False
    """Who asks is not known: the API answers nobody."""
    requests: list[str] = field(default_factory=list)
    """Paths of the API, in the order in which they were requested."""
    problem: dict[str, Any] | None = None
    """Answered by the API instead of its data."""
    html: bool = False
    """A proxy's page is answered instead of the API."""
    slow: bool = False
    """The API does not answer until this is false."""
    streaming: bool = True
    """False ends the open streams and refuses new ones."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Sent once to each stream, in order."""
    confirming: bool = True
    """False keeps the stream open and silent."""
    started: float = field(default_factory=time.monotonic)
    streams: int = 0
    """How many were opened."""
    open_streams: int = 0
    stopped: bool = False

    def now(self) -> dict[str, Any]:
        """The overview with its clock going on from the recorded time."""
        gone = time.monotonic() - self.started
        nodes = [
            {**node, "seen_at": node["seen_at"] + gone if node["stats"] else node["seen_at"]}
            for node in self.overview["nodes"]
        ]
        return {**self.overview, "at": self.overview["at"] + gone, "nodes": nodes}

    def series(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """The recorded series; of others, nothing was measured."""
        at = self.history["at"]
        nothing = [None] * len(at)
        scope = {key: query.get(key, [None])[0] for key in ("node", "tenant")}
        series = [
            {"name": name, "unit": "", **scope, "values": self.history.get(name, nothing)}
            for name in query.get("name", [])
        ]
        return {"step_s": 10, "at": at, "series": series, "marks": self.marks, "problem": ""}

    @property
    def on_air(self) -> bool:
        return self.streaming and not self.stopped

    def show(self, name: str) -> None:
        loaded = fixture(name)
        self.overview, self.history = loaded["overview"], loaded["history"]
        self.prefixes, self.session = loaded["prefixes"], loaded["session"]


class Player(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, play: Play) -> None:
        self.play = play
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Player

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass

    def do_GET(self) -> None:
        play, path = self.server.play, self.path.partition("?")[0]
        try:
            if path.startswith(API):
                play.requests.append(self.path)
            if path == "/api/v1/events":
                self.stream(play)
            elif path.startswith(API):
                while play.slow and not play.stopped:
                    time.sleep(0.02)
                self.api(play, path)
            else:
                self.page(path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser went away

    def api(self, play: Play, path: str) -> None:
        if play.html:
            self.answer(200, "text/html", b"<h1>Welcome</h1>")
        elif play.locked:
            self.answer(UNKNOWN["status"], "application/problem+json", json.dumps(UNKNOWN).encode())
        elif play.problem is not None:
            self.answer(play.problem["status"], "application/problem+json", json.dumps(play.problem).encode())
        else:
            answer = self.data(play, path)
            if answer is None:
                self.answer(404, "application/problem+json", json.dumps(NOT_FOUND).encode())
            else:
                self.answer(200, "application/json", json.dumps(answer).encode())

    def data(self, play: Play, path: str) -> Any:
        """Return what the API has at this path; None for nothing."""
        overview, at = play.overview, path.removeprefix("/api/v1/")
        kind, _, name = at.partition("/")
        name = unquote(name)
        for type_, key in (("tenants", "tenant"), ("pins", "name")):
            if kind == type_ and name:
                return next((each for each in overview[type_] if each[key] == name), None)
            if kind == type_:
                answer = play.answers.get(type_) or listed(overview[type_], overview[f"{type_}_total"])
                tenants = parse_qs(self.path.partition("?")[2]).get("tenant")
                return listed([each for each in answer["items"] if each["tenant"] in tenants]) if tenants else answer
        if kind == "quotas":
            tenant = next((each for each in overview["tenants"] if each["tenant"] == name), None)
            return tenant and {**tenant, **QUOTA}
        if at == "audit":
            if "cursor=" in self.path:
                return {**play.audit, **LAST_PAGE, "items": play.older}
            kinds = parse_qs(self.path.partition("?")[2]).get("kind")
            items = [each for each in play.audit["items"] if kinds is None or each["kind"] in kinds]
            return {**play.audit, "items": items}
        if at == "healthz" or path == "/healthz":
            return {"status": "ok", "release": "0.1.0", "instance": "i"}
        if at == "alerts" and "state=firing" in self.path:
            alerts = play.answers.get(at, listed([]))
            return listed([each for each in alerts["items"] if each["state"] == "firing"])
        if at == "sessions":
            answer = play.answers.get(at, LISTS[at])
            [tenant] = parse_qs(self.path.partition("?")[2])["tenant"]
            return {**answer, "items": [each for each in answer["items"] if each["tenant"] == tenant]}
        if at in LISTS:
            return play.answers.get(at, LISTS[at])
        return {
            "session": play.session,
            "overview": play.now(),
            "series": play.series(parse_qs(self.path.partition("?")[2])),
            "prefixes": play.prefixes,
            "usage": play.usage,
        }.get(at)

    def stream(self, play: Play) -> None:
        if not play.on_air:
            self.answer(503, "text/plain", b"")
            return
        play.streams += 1
        sent = 0
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        play.open_streams += 1
        try:
            confirmed, shown = 0.0, None
            while play.on_air:
                news = sent < len(play.events) or shown is not play.overview
                while sent < len(play.events):
                    self.event("event", play.events[sent])
                    sent += 1
                if play.confirming and (news or time.monotonic() > confirmed + CONFIRM_INTERVAL_S):
                    shown, confirmed = play.overview, time.monotonic()
                    self.event("overview", play.now())
                time.sleep(LOOK_S)
        finally:
            play.open_streams -= 1

    def event(self, name: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def page(self, path: str) -> None:
        file = (DIST / ("index.html" if path == "/" else path.lstrip("/"))).resolve()
        if not file.is_relative_to(DIST) or not file.is_file():
            self.answer(404, "text/plain", b"")
            return
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        self.answer(200, kind, file.read_bytes())

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def playing(name: str) -> Iterator[Player]:
    """A server that plays the fixture of that name."""
    loaded = fixture(name)
    player = Player(Play(**loaded))
    thread = threading.Thread(target=player.serve_forever, kwargs={"poll_interval": 0.05}, name="player")
    thread.start()
    try:
        yield player
    finally:
        player.play.stopped = True
        player.shutdown()
        join(thread)
        player.server_close()
