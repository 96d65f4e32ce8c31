"""Check the names of the code against `docs/glossary.md`: no word that the glossary replaces, in file names and
identifiers of Python and of the dashboard, and no top-level class name that two modules of Larder share. Prints each
finding, and exits with 1 if there is any."""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "dataplane")
WEB = "web/src"
_HEADING = "## Names that are not used"
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NO_NAMES = re.compile(r"/\*.*?\*/|<!--.*?-->|(?<!:)//[^\n]*|'[^'\n]*'|\"[^\"\n]*\"", re.DOTALL)
"""Comments and strings of TypeScript, CSS and Svelte, well enough to find identifiers."""


def forbidden(glossary: str) -> dict[str, str]:
    """Return the words of the glossary's second table, lower case, each with what to write instead."""
    words: dict[str, str] = {}
    for line in glossary.partition(_HEADING)[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0] not in ("not", "---"):
            before = re.sub(r"\(.*?\)", "", cells[0])
            words |= {word.strip(): cells[1] for word in before.split(",") if " " not in word.strip()}
    return words


def wrong_names(names: Iterable[tuple[int, str]], words: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the replacement for each name with a forbidden word, the first time each."""
    seen: set[str] = set()
    for line, name in names:
        if name in seen:
            continue
        seen.add(name)
        for part in _PARTS.findall(name):
            word = part.lower()
            singular = word.removesuffix("s")
            if word in words or singular in words:
                yield line, name, words.get(word) or words[singular]


def python_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each identifier."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def web_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each word outside of comments and strings."""
    bare = _NO_NAMES.sub(lambda match: "\n" * match.group().count("\n"), source)
    for number, line in enumerate(bare.splitlines(), 1):
        for word in re.findall(r"\w+", line):
            yield number, word


def main() -> int:
    words = forbidden((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert words, "the glossary has no table of names that are not used"
    found: list[str] = []
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        names = [(0, path.stem), *python_names(source)]
        found += [f"{name}:{line}: {bad}: write {better}" for line, bad, better in wrong_names(names, words)]
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(f"{name}:{node.lineno}")
    for path in sorted(path for kind in ("ts", "svelte", "css") for path in (ROOT / WEB).rglob(f"*.{kind}")):
        names = [(0, path.stem), *web_names(path.read_text(encoding="utf-8"))]
        name = str(path.relative_to(ROOT))
        found += [f"{name}:{line}: {bad}: write {better}" for line, bad, better in wrong_names(names, words)]
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
