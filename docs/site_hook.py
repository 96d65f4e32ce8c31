"""Hook of MkDocs: CONTRIBUTING.md, which lies outside of `docs/`, is a page of the site, and diagrams are pictures."""

import re
from itertools import count
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PAGE = "contribute/contributing.md"
_FILE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:deploy|benchmarks)/[^)]+)\)")
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```$", re.DOTALL | re.MULTILINE)
_OUTSIDE = re.compile(r"\]\((?:\.\./)+CONTRIBUTING\.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the page, with links that lead from its place in the site."""
    text = Path(config.config_file_path).with_name("CONTRIBUTING.md").read_text(encoding="utf-8")
    files.append(File.generated(config, PAGE, content=text.replace("](docs/", "](../")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to CONTRIBUTING.md to the page, name other files outside of `docs/` by their paths, and show the
    pictures of diagrams."""
    up = "../" * page.file.src_uri.count("/")
    name, numbers = page.file.src_uri.removesuffix(".md").replace("/", "-"), count(1)
    markdown = _DIAGRAM.sub(lambda _: f"![Diagram]({up}pictures/{name}-{next(numbers)}.svg)", markdown)
    return _FILE.sub(r"\1 (`\2`)", _OUTSIDE.sub(f"]({up}{PAGE}", markdown))
