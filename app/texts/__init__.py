"""Convert text to tokens in a separate process: `python -m app.texts` runs one job and exits.

Users upload tokenizers and chat templates and supply the text. A pattern that never ends, a template that fills the
memory or a library that aborts must cost one job and not the server. Each job therefore runs in its own process, under
limits of time and memory.

This package imports nothing from the rest of `app`.
"""
