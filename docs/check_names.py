"""Check the names of the code against `docs/glossary.md`: no word that the glossary replaces, and no top-level class
name that two modules of Larder share. Prints each finding, and exits with 1 if there is any."""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "dataplane")
_HEADING = "## Names that are not used"
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def forbidden(glossary: str) -> dict[str, str]:
    """Return the words of the glossary's second table, lower case, each with what to write instead."""
    words: dict[str, str] = {}
    for line in glossary.partition(_HEADING)[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0] not in ("not", "---"):
            before = re.sub(r"\(.*?\)", "", cells[0])
            words |= {word.strip(): cells[1] for word in before.split(",") if " " not in word.strip()}
    return words


def wrong_names(source: str, words: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the replacement for each identifier with a forbidden word, the first time each."""
    seen: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.NAME or token.string in seen:
            continue
        seen.add(token.string)
        for part in _PARTS.findall(token.string):
            word = part.lower()
            singular = word.removesuffix("s")
            if word in words or singular in words:
                yield token.start[0], token.string, words.get(word) or words[singular]


def main() -> int:
    words = forbidden((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert words, "the glossary has no table of names that are not used"
    found: list[str] = []
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        found += [f"{name}:{line}: {bad}: write {better}" for line, bad, better in wrong_names(source, words)]
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(f"{name}:{node.lineno}")
    found += [
        f"{places[1]}: class {name} exists in {places[0]}, too"
        for name, places in classes.items()
        if places[1:]
    ]
    sys.stdout.write(
        "\n".join(found or ["names: no word that the glossary replaces, no class name twice"]) + "\n"
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
