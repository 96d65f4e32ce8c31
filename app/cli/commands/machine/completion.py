"""`larder completion`: print a completion script for a shell."""

import click
from click.shell_completion import get_completion_class

from app.cli.support.printing.terminal import exact


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash:  echo 'eval "$(larder completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(larder completion zsh)"' >> ~/.zshrc
    fish:  larder completion fish > ~/.config/fish/completions/larder.fish
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    script = completion_class(ctx.find_root().command, {}, "larder", "_LARDER_COMPLETE")
    exact([script.source().encode(), b"\n"])
