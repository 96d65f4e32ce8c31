"""`larder up`: run the process that serves the API and the dashboard, pushes records to nodes, receives their events,
and supervises the data plane."""

import contextlib
import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from app.settings import Settings, check_bind, load, resolved, without_secrets
from dataplane.base.addresses import host_and_port
from dataplane.base.child_command import module_command
from dataplane.base.settings import SettingsError
from dataplane.base.state_folder import check_state_folder, unusable
from dataplane.protocol.signals import SETTINGS_EXIT_CODE

if TYPE_CHECKING:  # the real import takes half a second, and only serving needs it
    from app.asgi import App
    from app.compose import Parts
    from app.store.base.database import Database
    from app.supervisor.node_process import NodeProcess


EARLY_SERVES_S = 10.0
"""Longest wait in seconds for a data plane that takes over memory. After it, this process serves while the data plane
starts."""
EARLY_ENDS_S = 10.0
"""Longest wait in seconds for the exit code of a data plane that has closed its connection."""
STALLED_S = 300.0
"""Seconds after which a connection is closed if its client reads nothing of an answer."""
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LISTENER_VARIABLE = "_LARDER_UP_LISTENER"
"""Environment variable for the descriptor of the HTTP socket: a process that replaces itself passes the socket on, so
that no connection is refused."""
LOCK_VARIABLE = "_LARDER_UP_LOCK"
"""Environment variable for the descriptor that locks the state directory: a process that replaces itself passes the
lock on, so that no other process can take it meanwhile."""


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file; default LARDER_CONFIG, ./larder.toml.")
@click.option("--print-config", is_flag=True, help="Print the settings in force as JSON and exit.")
@click.option(
    "--fresh", is_flag=True, help="Release what a stopped Larder keeps in memory, and start with an empty cache."
)
def up(config: str | None, print_config: bool, fresh: bool) -> None:
    """Start Larder: API, dashboard and data plane, in the foreground until SIGTERM or Ctrl-C."""
    if config is not None:
        os.environ["LARDER_CONFIG"] = config  # the data plane reads the same file
    settings = load(config)
    if print_config:
        from app.cli.support.api.client import print_json

        print_json(without_secrets(settings))
        return
    signal.signal(signal.SIGHUP, lambda *_: None)  # the startup document, which it makes Larder read, is read anyway
    is_warm = not fresh and _has_memory(settings)
    if not is_warm:
        _check_data_plane(settings)
    with alone(settings) as lock, _listening(settings) as listener:
        handover = _Handover(lock)
        with _early_data_plane(settings, handover) if is_warm else contextlib.nullcontext() as early:
            _check_join(settings)
            if fresh:
                from app.cli.commands.machine.down import release_memory

                release_memory(settings, "released by `larder up --fresh`")
            code = _serve(settings, listener, handover, early)
        if handover.listener is not None:
            _replace_this_process(handover, handover.listener)
        sys.exit(code)


class _Handover:
    """Resources for the process that replaces this one."""

    def __init__(self, lock: int) -> None:
        self.lock = lock
        """The descriptor that locks the state directory."""
        self.listener: socket.socket | None = None
        """A duplicate of the HTTP socket, because the server closes its own."""
        self.signal: signal.Signals | None = None
        """The stop signal that arrived after the restart had begun."""


def _replace_this_process(handover: _Handover, listener: socket.socket) -> None:
    """Run the same command again in this process, with the HTTP socket `listener`, and with the code and the settings
    as they are now.

    Signals are blocked until the new code handles them: otherwise they would end this process and leave the data plane
    running.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    if handover.signal is not None:
        signal.pthread_kill(threading.get_ident(), handover.signal)
    _hand_on(LISTENER_VARIABLE, listener.fileno())
    _hand_on(LOCK_VARIABLE, handover.lock)
    arguments = [argument for argument in sys.orig_argv[1:] if argument != "--fresh"]
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: TID251 - as it was started


def _hand_on(variable: str, descriptor: int) -> None:
    os.set_inheritable(descriptor, True)
    os.environ[variable] = str(descriptor)


def _inherited_descriptor(variable: str) -> int | None:
    """Return the descriptor that the replaced process passed on, or None."""
    number = os.environ.pop(variable, "")
    if not number.isdecimal():
        return None
    try:
        os.set_inheritable(int(number), False)
    except OSError:
        return None
    return int(number)


def _inherited_listener(address: tuple[str | int, ...]) -> socket.socket | None:
    """Return the HTTP socket of the replaced process if it listens on the configured address, otherwise None."""
    descriptor = _inherited_descriptor(LISTENER_VARIABLE)
    if descriptor is None:
        return None
    try:
        listener = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        host, port, *_ = address
        if listens and (not port or listener.getsockname()[:2] == (host, port)):
            return listener
    except OSError:
        pass
    listener.close()
    return None


def _check_data_plane(settings: Settings) -> None:
    """Raise SettingsError for invalid data plane settings. Otherwise the data plane would start and exit
    repeatedly."""
    if not settings.app.embedded_data_plane:
        return
    from app.supervisor.environ import environ_of

    command = module_command("dataplane", "--print-config")
    environ = environ_of(os.environ)
    checked = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if checked.returncode == SETTINGS_EXIT_CODE:
        raise SettingsError(checked.stderr.strip())


def _has_memory(settings: Settings) -> bool:
    """Return whether a holder has memory for the embedded data plane, and no data plane uses it."""
    from dataplane.holding.requests import HolderFailed, describe

    if settings.app.embedded_data_plane:
        with contextlib.suppress(HolderFailed):
            memory = describe(settings.state_dir)
            return memory is not None and memory.files > 0 and not memory.connected
    return False


@contextlib.contextmanager
def _early_data_plane(settings: Settings, handover: _Handover) -> Iterator["NodeProcess"]:
    """Start the data plane before this process imports what it needs itself.

    Engines wait for a data plane: this way, for one interpreter's start instead of two.
    """
    from app.supervisor.descriptors import allow_descriptors
    from app.supervisor.environ import environ_of
    from app.supervisor.node_process import start
    from app.supervisor.supervisor import COMMAND, HOLDER_S

    # Without a handler, the signal would end this process and leave the data plane running.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)  # the data plane would inherit the mask of a restart
    allow_descriptors()
    environ = environ_of(os.environ, settings.common)
    early = start(COMMAND, environ, survives=settings.app.data_plane_survives)
    early.begin()
    try:
        yield early
    finally:
        if handover.listener is None:
            early.end(settings.app.shutdown_grace_s + HOLDER_S)


def _await_early(early: "NodeProcess") -> None:
    """Wait until the early data plane serves, ends, or has had enough time. Raises SettingsError if it ended because
    of invalid settings: the supervisor would start it again and again."""
    from app.supervisor.node_process import serves

    if not serves(early, EARLY_SERVES_S) and early.exit_code(EARLY_ENDS_S) == SETTINGS_EXIT_CODE:
        raise SettingsError("a setting of the data plane is invalid: see its message above")


def _check_join(settings: Settings) -> None:
    """Raise SettingsError for an invalid join URL or key, with which nodes could not reach this management plane, and
    ClickException for an address that is in use. Runs before anything is written."""
    if not settings.app.join_url:
        return
    from app.push.joining import check_url
    from app.push.keys import check_key

    try:
        check_url(settings.app.join_url)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    check_key(settings.state_dir, settings.app.curve_key_file)


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[int]:
    """Lock the state directory, and yield the descriptor of the lock: two management planes would compete for its
    sockets. A process that replaces another one takes over its lock."""
    folder = Path(settings.common.state_dir)
    locked = _inherited_descriptor(LOCK_VARIABLE)
    try:
        if locked is None:  # otherwise the data plane would lose its management plane
            check_state_folder(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if locked is not None:
            if os.path.sameopenfile(locked, descriptor):
                os.dup2(locked, descriptor, inheritable=False)
            os.close(locked)
    except OSError as error:
        raise click.ClickException(str(unusable(folder, error))) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise click.ClickException(
            f"another Larder runs with the state directory {folder}; stop it, or set LARDER_STATE_DIR"
        ) from None
    with contextlib.suppress(OSError):  # on a full disk, `larder down` cannot find the process and says so
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Yield the listening socket. It is bound before anything else starts, because a port in use is the most common
    mistake."""
    host, port = settings.common.http_host, settings.common.http_port
    try:
        family, address = resolved(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host_and_port(host, port)}: {error.strerror}; set LARDER_HTTP_HOST to an address of "
            "this machine"
        ) from None
    inherited = _inherited_listener(address)
    if inherited is not None:
        with inherited:
            yield inherited
        return
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit these options: an answer in two writes must not wait 40 ms for the client's delayed
        # ACK, and a client that reads nothing must not hold its connection forever.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALLED_S * 1000))
        listener.bind(address)
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).rstrip(".")
        raise click.ClickException(
            f"cannot listen on {host_and_port(host, port)}: {reason}; set LARDER_HTTP_PORT to another port"
        ) from None
    with listener:
        yield listener


def _serve(settings: Settings, listener: socket.socket, handover: _Handover, early: "NodeProcess | None") -> int:
    """Serve until a stop signal, and return the exit code. Afterwards `handover` has a listener if this process must
    replace itself."""
    import asyncio

    import structlog
    import uvloop

    from app import __version__
    from app.asgi import create_app
    from dataplane.base import otlp
    from dataplane.base.log import configure

    host, port = listener.getsockname()[:2]
    url = f"http://{host_and_port(host, port)}"
    app = create_app(settings, url)
    log = configure(settings.app.log_level, settings.app.log_format)
    telemetry = otlp.start("management-plane", __version__, os.environ, socket.gethostname())
    supervisor = app.parts.fleet_services.supervisor
    if early is not None and supervisor is not None:
        _await_early(early)
        supervisor.begin_with(early)  # also if it has ended: its memory goes to the next data plane
    structlog.get_logger().info("larder.starting", url=url, release=__version__, state_dir=settings.common.state_dir)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, app, listener, url, handover))
    finally:
        if telemetry is not None:
            telemetry.close()
        log.close()


async def _prepare(database: "Database") -> None:
    """Migrate the database before anything else starts. Raises ClickException, so that a wrong address or password
    causes a one-sentence message instead of a traceback."""
    import asyncpg
    from sqlalchemy.exc import DBAPIError

    from app.errors import StoreUnavailable
    from app.store.base import migrate

    try:
        await migrate.upgrade(database)
    except migrate.NewerSchema as error:
        raise click.ClickException(
            f"the database {database.shown} cannot be used: {error}; start that release, or restore a backup that "
            "this one made"
        ) from None
    except (StoreUnavailable, DBAPIError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
        reason = cause.orig if isinstance(cause, DBAPIError) else cause or error
        raise click.ClickException(
            f"the database {database.shown} cannot be used: {str(reason).strip()}; see LARDER_DATABASE_URL"
        ) from None


async def _check_bind(settings: Settings, database: "Database") -> None:
    """Raise SettingsError if the configured address is not safe to serve. Runs before the first request."""
    from app.store.access import tokens

    async with database.read() as session:
        exist = await tokens.exist(session)
    check_bind(settings, tokens_exist=exist)


async def _apply_file(parts: "Parts") -> None:
    """Apply the startup document. Raises ClickException if a new system has an invalid one;
    `app.services.documents.startup_document` explains why."""
    from app.services.documents.startup_document import StartupDocumentError

    try:
        await parts.documents.startup.start()
    except StartupDocumentError as error:
        raise click.ClickException(str(error)) from None


def _last_act(parts: "Parts", handover: _Handover) -> Callable[[], None]:
    """Return the last action of a shutdown that hangs: replace this process if the shutdown is a restart, otherwise
    kill the data plane."""

    def act() -> None:
        if handover.listener is not None:
            _replace_this_process(handover, handover.listener)
        elif parts.fleet_services.supervisor is not None:
            parts.fleet_services.supervisor.kill()

    return act


async def _run(settings: Settings, app: "App", listener: socket.socket, url: str, handover: _Handover) -> int:
    import asyncio

    import structlog
    import uvicorn

    from app.cli.support.machine.exit_watchdog import exit_after
    from app.cli.support.machine.serving import announce
    from app.http.middleware.server_protocol import protocol_of
    from app.http.server import Server
    from app.supervisor.descriptors import allow_descriptors

    allow_descriptors()

    class LoggedServer(Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                gc.collect()
                gc.freeze()  # objects from the start are permanent: collections need not walk them
                structlog.get_logger().info("larder.started", url=url)
                announcing.append(asyncio.create_task(announce(settings, app.parts, url)))

    announcing: list[asyncio.Task[None]] = []
    server = LoggedServer(
        uvicorn.Config(
            app,
            loop="none",
            http=protocol_of(app.parts.limits.connections),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `trusted_proxies` decides
            timeout_graceful_shutdown=max(1, round(settings.app.shutdown_grace_s)),
        )
    )

    def stop(name: str) -> None:
        if handover.listener is not None and name != "restart":
            handover.signal = signal.Signals[name]  # the new process handles it
        if not server.should_exit:
            exit_after(settings.app.shutdown_grace_s, _last_act(app.parts, handover))
        server.should_exit = True
        structlog.get_logger().info("larder.stopping", signal=name)
        app.parts.bus.close()  # end open streams now instead of after the grace time

    def restart() -> bool:
        """Begin a restart. Return whether this process will replace itself; False if it is already stopping."""
        if server.should_exit:
            return False
        handover.listener = listener.dup()
        stop("restart")
        return True

    app.parts.fleet_services.restarts.replace_self = restart
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    # Signals may be pending from the replaced process.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)
    try:
        await _prepare(app.parts.database)
        await _apply_file(app.parts)
        loop.add_signal_handler(signal.SIGHUP, app.parts.documents.startup.trigger)
        await _check_bind(settings, app.parts.database)
    except BaseException:
        await app.parts.database.close()
        raise
    await server.serve(sockets=[listener])
    for task in announcing:
        task.cancel()
    if not server.started:
        return 1
    structlog.get_logger().info("larder.stopped")
    return 0
