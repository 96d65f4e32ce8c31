"""One module per command, grouped by subject; `app.cli` imports the module of the command that is called."""
