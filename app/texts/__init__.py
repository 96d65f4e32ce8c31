"""Text to tokens, in a process of its own: `python -m app.texts` does one job and ends.

Tokenizers and chat templates are files that somebody uploads, and text is what somebody wrote. A pattern that never
ends, a template that fills the memory or a library that aborts must cost one job, and nothing of the server. So a job
runs under limits of time and memory, and is told apart from others by being another process.

Knows nothing of the rest of `app`.
"""
