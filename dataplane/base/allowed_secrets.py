"""Checks which secrets records of tiers may name.

Records come from operators, and the node sends a secret to the server that the record names. Without this check, an
operator could send any file that the data plane can read, and any variable of its environment, to any server.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from posixpath import normpath

DEFAULT = ("env:TIER_*", "file:/etc/larder/tier-secrets/*", "file:/run/secrets/*")
"""What `dataplane.tier_secrets` allows by default."""
_MAX_SHOWN = 256
"""Most characters of a reference that a message repeats."""
_REFERENCE = re.compile(r"(env|file):")
_ENTRY = re.compile(r"(env:\w*|file:/.*?)\*?", re.ASCII)


def is_entry(text: str) -> bool:
    """Return whether a text is a valid entry of `dataplane.tier_secrets`."""
    return _ENTRY.fullmatch(text) is not None and text not in ("env:", "file:/")


def faults(parameters: object, allowed: Sequence[str], path: str = "parameters") -> Iterator[tuple[str, str]]:
    """Yield the path and a message for each reference in the parameters that no entry of `allowed` covers."""
    if isinstance(parameters, str):
        if _REFERENCE.match(parameters) and not any(_covers(entry, parameters) for entry in allowed):
            yield path, _refusal(parameters, allowed)
    elif isinstance(parameters, Mapping):
        for name, value in parameters.items():
            yield from faults(value, allowed, f"{path}.{name}")
    elif isinstance(parameters, list):
        for number, value in enumerate(parameters):
            yield from faults(value, allowed, f"{path}[{number}]")


def covers_variable(allowed: Sequence[str], name: str) -> bool:
    """Return whether an entry of `allowed` covers this variable of the environment."""
    return any(_covers(entry, f"env:{name}") for entry in allowed)


def _refusal(reference: str, allowed: Sequence[str]) -> str:
    """Return why a reference is refused, and how to allow it unless no entry can."""
    expected = f"expected a secret that dataplane.tier_secrets of this node allows: {', '.join(allowed) or 'none'}"
    if len(reference) > _MAX_SHOWN or not is_entry(reference) or not _covers(reference, reference):
        return expected
    listed = ", ".join(f'"{entry}"' for entry in (*allowed, reference))
    return (
        f"{expected}. To allow {reference}, set tier_secrets = [{listed}] in the section [dataplane] of the settings "
        "of the node, and stop and start Larder there"
    )


def _covers(entry: str, reference: str) -> bool:
    kind, _, name = reference.partition(":")
    if kind == "file" and normpath(name) != name:  # `..` would lead out of a directory
        return False
    return reference.startswith(entry[:-1]) if entry.endswith("*") else reference == entry
