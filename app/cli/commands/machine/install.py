"""`larder install systemd`: write the units of this machine's services."""

import os
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import click

from app.cli.support.printing.terminal import exact, say

DIRECTORY_MODE = 0o755
_SPECIAL = "%$\"'\\;"
"""Characters that systemd or a shell interprets."""
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""Folders that `ProtectHome=yes` and `PrivateTmp=yes` hide from the services."""


@click.group()
def install() -> None:
    """Install Larder as services of this machine."""


@install.command()
@click.option("--system/--user", default=True, help="Services of the machine (default), or of your user.")
@click.option(
    "--prefix",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    help="Write below this folder instead of /, as for a package or an image.",
)
@click.option(
    "--executable", type=click.Path(dir_okay=False), help="The `larder` that the services run; the default is this one."
)
@click.option("--print", "only_print", is_flag=True, help="Print the files and write nothing.")
@click.option("--force", is_flag=True, help="Overwrite unit files that were changed.")
def systemd(system: bool, prefix: Path, executable: str | None, only_print: bool, force: bool) -> None:
    """Write systemd units for the management plane, the data plane and the holder of its memory, and show the next
    commands.

    The services restart independently. Changed unit files stay unless --force is given, the environment file always.
    """
    larder = executable or str(Path(sys.executable).with_name("larder"))  # noqa: TID251 - where `larder` is installed
    _check(larder, system)
    files = _files(system, prefix, larder)
    if only_print:
        exact(f"# {path}\n{text}\n".encode() for path, (text, _) in files.items())
        return
    changed = [path for path, (text, _) in files.items() if _differs(path, text) and not _is_environment(path)]
    if changed and not force:
        paths = ", ".join(map(str, changed))
        raise click.ClickException(f"{paths}: changed since it was written; --force overwrites it")
    for path, (text, mode) in files.items():
        if path.exists() and (_is_environment(path) or not _differs(path, text)):
            say(f"kept     {path}")
            continue
        _write(path, text, mode)
        say(f"written  {path}")
    _say_next(system, larder)


def _check(larder: str, system: bool) -> None:
    """Raise ClickException if a service cannot run this executable."""
    if not os.path.isabs(larder) or any(character.isspace() or character in _SPECIAL for character in larder):
        raise click.ClickException(
            f"--executable: expected an absolute path without spaces and without {' '.join(_SPECIAL)}, got {larder!r}"
        )
    if system and any(Path(larder).is_relative_to(folder) for folder in _HIDDEN):
        raise click.ClickException(
            f"{larder} is in a home or temporary directory, which the services cannot read; install Larder in "
            "/opt/larder (docs/install.md) and name it with --executable, or use --user"
        )


def _files(system: bool, prefix: Path, larder: str) -> dict[Path, tuple[str, int]]:
    """Return the text and the mode of each file by its path."""
    units = files(__package__) / "units"
    unit_folder = units / ("system" if system else "user")
    root = prefix.absolute()
    if system:
        folder, environment = root / "etc/systemd/system", root / "etc/larder/larder.env"
    else:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").absolute()
        config = root / config.relative_to("/")
        folder, environment = config / "systemd/user", config / "larder/larder.env"
    texts = {
        folder / name: ((unit_folder / name).read_text(encoding="utf-8").replace("@LARDER@", larder), 0o644)
        for name in ("larder.service", "larder-dataplane.service", "larder-holder.service")
    }
    if system:
        users = (unit_folder / "larder.conf").read_text(encoding="utf-8")
        texts[root / "etc/sysusers.d/larder.conf"] = (users, 0o644)
    texts[environment] = ((units / "larder.env").read_text(encoding="utf-8"), 0o600)
    return texts


def _is_environment(path: Path) -> bool:
    return path.suffix == ".env"


def _differs(path: Path, text: str) -> bool:
    """Return whether there is a file with another text. Raises ClickException."""
    try:
        return path.read_bytes() != text.encode()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, text: str, mode: int) -> None:
    """Write the file as a whole, or leave what is there. Raises ClickException."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        for folder in reversed([parent for parent in path.parents if not parent.exists()]):
            folder.mkdir()
            folder.chmod(DIRECTORY_MODE)
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def _say_next(system: bool, larder: str) -> None:
    control = "systemctl" if system else "systemctl --user"
    commands = ["systemd-sysusers larder.conf"] if system else ["loginctl enable-linger"]
    commands += [f"{control} daemon-reload", f"{control} enable --now larder-dataplane larder"]
    if shutil.which("larder") is None:
        commands.append(f"ln -s {larder} {'/usr/local/bin' if system else '~/.local/bin'}/larder")
    journal = "journalctl" if system else "journalctl --user"
    commands += [f"{journal} -u larder | grep setup_token", "larder login --setup --name YOUR-NAME"]
    say()
    say("Next:")
    for command in commands:
        say(f"  {command}")
    say()
    say("The API asks for a token: the first start logs a setup token, with which you make yourself an admin.")
    if not system:
        say("enable-linger starts the services at boot. It also keeps logind from removing the files of your user in")
        say("/dev/shm when your last session ends (RemoveIPC=).")
