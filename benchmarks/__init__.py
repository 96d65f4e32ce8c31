"""Figures of the data plane as an engine sees it, measured beside what the machine itself can do.

`python -m benchmarks [--quick] [NAME…]` (also `make bench`). Each benchmark is a file with one `run(setting)` that
returns results; `suite` lists them. All run against a real data plane process that the benchmark starts. Speed is
a ratio to a baseline that was measured in the same run, alternating with what is measured: `harness.memory` copies
between two shared mappings, `harness.roundtrip` sends a bare message to another process and back. Values are medians.

`python -m benchmarks.eviction TRACE…` is a command of its own: which share of a trace each eviction policy serves,
through replays that take minutes. See `benchmarks/EVICTION.md`.

What the figures mean and how to read them: `benchmarks/FIGURES.md`.
"""
