"""Check the names of the code against `docs/glossary.md`: no word or term that the glossary replaces, in file names and
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
_OF_OTHERS = re.compile("world_?size|hf_hub|huggingface_hub", re.IGNORECASE)
"""Names of other projects, which keep their words."""
_NO_NAMES = re.compile(r"/\*.*?\*/|<!--.*?-->|(?<!:)//[^\n]*|'[^'\n]*'|\"[^\"\n]*\"", re.DOTALL)
"""Comments and strings of TypeScript, CSS and Svelte, well enough to find identifiers."""

Terms = dict[tuple[str, ...], str]


def forbidden(glossary: str) -> Terms:
    """Return the terms of the glossary's second table, lower case and split into words, each with its replacement."""
    terms: Terms = {}
    for line in glossary.partition(_HEADING)[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0] not in ("not", "---"):
            before = re.sub(r"\(.*?\)", "", cells[0])
            terms |= {tuple(term.split()): cells[1] for term in before.lower().split(",")}
    return terms


def forms(word: str) -> set[str]:
    """Return a word with its plural, participle and gerund, and some that do not exist."""
    stems = {word, word.removesuffix("e"), word + word[-1], re.sub("y$", "i", word)}
    return {word} | {stem + ending for stem in stems for ending in ("s", "es", "ed", "ing")}


def wrong_names(names: Iterable[tuple[int, str]], terms: Terms) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the replacement for each name with a forbidden term, the first time each."""
    starts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for term in terms:
        for form in forms(term[0]):
            starts[form].append(term)
    for name, line in {name: line for line, name in reversed(list(names))}.items():
        parts = [part.lower() for part in _PARTS.findall(_OF_OTHERS.sub("", name))]
        for at, part in enumerate(parts):
            for term in starts.get(part, ()):
                run = parts[at : at + len(term)]
                if len(run) == len(term) and all(each in forms(word) for each, word in zip(run, term, strict=True)):
                    yield line, name, terms[term]


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


def findings(paths: Iterable[Path], terms: Terms) -> Iterator[str]:
    """Yield a line for each wrong name in the files."""
    for path in sorted(paths):
        source = path.read_text(encoding="utf-8")
        names = python_names(source) if path.suffix == ".py" else web_names(source)
        for line, bad, better in wrong_names([(0, path.stem), *names], terms):
            yield f"{path.relative_to(ROOT)}:{line}: {bad}: write {better}"


def same_classes() -> Iterator[str]:
    """Yield a line for each top-level class name of Larder that exists in two modules."""
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, found in classes.items():
        if found[1:]:
            yield f"{found[1]}: class {name} exists in {found[0]}, too"


def main() -> int:
    terms = forbidden((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert terms, "the glossary has no table of names that are not used"
    web = [path for kind in ("ts", "svelte", "css") for path in (ROOT / WEB).rglob(f"*.{kind}")]
    folders = ("app", "benchmarks", "dataplane", "tests")
    found = [
        *findings([*(path for folder in folders for path in (ROOT / folder).rglob("*.py")), *web], terms),
        *same_classes(),
    ]
    sys.stdout.write("\n".join(found or ["names: no term that the glossary replaces, no class name twice"]) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
