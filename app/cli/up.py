"""`larder up`: one process that serves the API and the dashboard, pushes, listens, and keeps the data plane running."""

import contextlib
import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.settings import Settings, check_bind, load, without_secrets
from dataplane.protocol.settings import SettingsError

if TYPE_CHECKING:  # the real import takes half a second: only when something is served
    from app.asgi import App
    from app.compose import Parts
    from app.store.database import Database


SETTINGS_EXIT_CODE = 2
"""With which the data plane ends when a setting of it is wrong."""


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False), help="Settings file; default LARDER_CONFIG, ./larder.toml."
)
@click.option("--print-config", is_flag=True, help="Print the settings in force as JSON and stop.")
def up(config: str | None, print_config: bool) -> None:
    """Start Larder: API, dashboard and data plane, in the foreground until SIGTERM or Ctrl-C."""
    if config is not None:
        os.environ["LARDER_CONFIG"] = config  # the data plane reads the same file
    try:
        settings = load(config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    if print_config:
        from app.cli.client import print_json

        print_json(without_secrets(settings))
        return
    _check_data_plane(settings)
    with _alone(settings), _listening(settings) as listener:
        _check_join(settings)
        sys.exit(_serve(settings, listener))


def _check_data_plane(settings: Settings) -> None:
    """Tell a mistake in the data plane's settings now: started with it, the data plane would end again and again."""
    if not settings.app.embedded_data_plane:
        return
    from app.push.environ import environ_of

    command = [sys.executable, "-m", "dataplane", "--print-config"]
    environ = environ_of(os.environ)
    checked = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if checked.returncode == SETTINGS_EXIT_CODE:
        raise click.ClickException(checked.stderr.strip())


def _check_join(settings: Settings) -> None:
    """A management plane that its nodes could not reach does not start, and nothing is written down before."""
    if not settings.app.join_url:
        return
    from app.push.joining import check_url
    from app.push.keys import key_pair

    try:
        check_url(settings.app.join_url)
        key_pair(settings.state_dir, settings.app.curve_key_file)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


@contextlib.contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """Two planes on one state directory would fight over its sockets."""
    folder = Path(settings.common.state_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise click.ClickException(f"the state directory {folder} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise click.ClickException(
            f"another Larder runs with the state directory {folder}; stop it, or set LARDER_STATE_DIR"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """The bound socket, before anything else is started: a port in use is the most common mistake."""
    host, port = settings.common.http_host, settings.common.http_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: an answer in two writes must not wait 40 ms for the client's delayed ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).rstrip(".")
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {reason}; set LARDER_HTTP_PORT to another port"
        ) from None
    with listener:
        yield listener


def _serve(settings: Settings, listener: socket.socket) -> int:
    import asyncio

    import structlog
    import uvloop

    from app import __version__
    from app.asgi import create_app
    from app.observe.log import configure

    try:
        app = create_app(settings)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    log = configure(settings.app.log_level, settings.app.log_format)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    app.parts.replicas.url = url
    structlog.get_logger().info(
        "larder.starting", url=url, release=__version__, state_dir=settings.common.state_dir
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, app, listener, url))
    finally:
        log.close()


async def _prepare(database: "Database") -> None:
    """Meet the database before anything else starts: a wrong address or password is a sentence, not a traceback."""
    import asyncpg
    from sqlalchemy.exc import DBAPIError

    from app.errors import StoreUnavailable
    from app.store import migrate

    try:
        await migrate.upgrade(database)
    except SettingsError as error:
        await database.close()
        raise click.ClickException(str(error)) from None
    except migrate.NewerSchema as error:
        await database.close()
        raise click.ClickException(
            f"the database {database.engine.url} cannot be used: {error}; start that release, or restore a backup that "
            "this one made"
        ) from None
    except (StoreUnavailable, DBAPIError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
        reason = cause.orig if isinstance(cause, DBAPIError) else cause or error
        await database.close()
        raise click.ClickException(
            f"the database {database.engine.url} cannot be used: {str(reason).strip()}; see LARDER_DATABASE_URL"
        ) from None


async def _check_bind(settings: Settings, database: "Database") -> None:
    """Before the first request is served."""
    from app.store import tokens

    async with database.read() as session:
        exist = await tokens.exist(session)
    try:
        check_bind(settings, tokens_exist=exist)
    except SettingsError as error:
        await database.close()
        raise click.ClickException(str(error)) from None


async def _apply_file(parts: "Parts") -> None:
    """A new system that is given a bad file does not start; `app.services.boot` says why."""
    from app.services.boot import BadFile

    try:
        await parts.boot.start()
    except BadFile as error:
        await parts.database.close()
        raise click.ClickException(str(error)) from None


def _killing(parts: "Parts") -> Callable[[], None]:
    """What ends the data plane when nobody has time to ask it."""
    return parts.supervisor.kill if parts.supervisor is not None else lambda: None


async def _run(settings: Settings, app: "App", listener: socket.socket, url: str) -> int:
    import asyncio

    import structlog
    import uvicorn

    from app.cli.last_resort import cut_off_after
    from app.http.connections import raise_descriptors
    from app.http.wire import protocol_of

    raise_descriptors()

    class Server(uvicorn.Server):
        """Signals are ours: uvicorn would raise them again at its end, and the exit code would not be 0."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                gc.collect()
                gc.freeze()  # what is there from the start stays: no need to walk it at every collection
                structlog.get_logger().info("larder.started", url=url)

    server = Server(
        uvicorn.Config(
            app,
            loop="none",
            http=protocol_of(app.parts.connections),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `trusted_proxies` says who is believed
            timeout_graceful_shutdown=max(1, round(settings.app.shutdown_grace_s)),
        )
    )

    def stop(name: str) -> None:
        if not server.should_exit:
            cut_off_after(settings.app.shutdown_grace_s, _killing(app.parts))
        server.should_exit = True
        structlog.get_logger().info("larder.stopping", signal=name)
        app.parts.hub.close()  # open streams end now instead of at the end of the grace time

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    await _prepare(app.parts.database)
    await _apply_file(app.parts)
    loop.add_signal_handler(signal.SIGHUP, app.parts.boot.nudge)
    await _check_bind(settings, app.parts.database)
    await server.serve(sockets=[listener])
    if not server.started:
        return 1
    structlog.get_logger().info("larder.stopped")
    return 0
