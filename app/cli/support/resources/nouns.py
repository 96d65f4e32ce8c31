"""Groups of commands about one type of resource, such as `larder quotas`."""

import click
from click.shell_completion import CompletionItem


class Noun(click.Group):
    """A group whose name alone means `list`, with the options of `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:  # a shell completes what follows the noun
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, and the options of `list`, which a noun alone takes."""
        found = super().shell_complete(ctx, incomplete)
        listing = self.commands.get("list")
        if listing is not None and incomplete.startswith("-"):
            with listing.make_context("list", [], parent=ctx, resilient_parsing=True) as inner:
                known = {item.value for item in found}
                found += [item for item in listing.shell_complete(inner, incomplete) if item.value not in known]
        return found

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if "list" in self.commands:
            formatter.write_paragraph()
            formatter.write_text("Without a command, 'list' is run.")
