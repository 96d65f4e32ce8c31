"""The project's own files: portable, in step with each other, and usable on a bare machine."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import app
import dataplane
from tests.require import require

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    ".dockerignore", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile",
    "LICENSE", "Makefile", "README.md", "alembic.ini", "constraints.txt", "docker-compose.yml", "mkdocs.yml",
    "pyproject.toml",
}  # fmt: skip
MENU = ["run", "demo", "test", "lint", "types", "bench", "golden", "fmt", "web", "clean"]


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def engine() -> dict[str, Any]:
    """The `[project]` table of the distribution for engines."""
    table: dict[str, Any] = tomllib.loads((ROOT / "dataplane" / "pyproject.toml").read_text())["project"]
    return table


def test_both_distributions_have_the_versions_of_their_packages(
    project: dict[str, Any], engine: dict[str, Any]
) -> None:
    assert project["version"] == engine["version"] == app.__version__ == dataplane.__version__
    assert project["dependencies"] == [f"{engine['name']}=={engine['version']}"]


def test_every_dependency_has_a_tested_version_that_fits(project: dict[str, Any], engine: dict[str, Any]) -> None:
    pinned: dict[str, list[str]] = {}
    for line in constraints():
        (pin,) = line.specifier
        assert pin.operator == "=="
        pinned.setdefault(line.name, []).append(pin.version)
    extras = project["optional-dependencies"]
    for text in [
        *engine["dependencies"],
        *project["dependencies"],
        *(each for extra in extras.values() for each in extra),
    ]:
        requirement = Requirement(text)
        if requirement.name in (project["name"], engine["name"]):
            continue
        assert requirement.name in pinned, f"constraints.txt has no {requirement.name}: run `make constraints`"
        for found in pinned[requirement.name]:
            assert found in requirement.specifier, f"{requirement} is tested with {found}"


def test_the_constraints_leave_the_cuda_packages_to_torch() -> None:
    assert str(constraints()[-1]) == "torch==2.13.0"
    assert not [line.name for line in constraints() if re.match(r"nvidia|cuda|triton", line.name)]


@pytest.mark.parametrize(
    "file", ["constraints.txt", "pyproject.toml", "dataplane/pyproject.toml", "Makefile", "Dockerfile", ".ci/run"]
)
def test_packaging_files_name_no_registry_and_no_folder_of_one_machine(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.findall(r"https?://(?!127\.0\.0\.1)\S+|file://\S+|/home/\w+|/root\b", text) == []


def test_the_lock_file_of_the_dashboard_names_no_registry() -> None:
    assert '"resolved"' not in (ROOT / "web" / "package-lock.json").read_text(encoding="utf-8")


def tracked() -> list[str]:
    require(shutil.which("git") and (ROOT / ".git").exists(), "not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


def test_no_unexpected_file_is_at_the_top() -> None:
    assert {name for name in tracked() if "/" not in name} - TOP_LEVEL == set()


def test_no_file_names_a_home_folder() -> None:
    home = re.compile(rb"/(?:home|Users)/(?!(?:me|user|dev)/)[a-z]\w*/|/root/(?!\.cache/huggingface)[.\w]")
    names = [name for name in tracked() if home.search((ROOT / name).read_bytes())]
    assert names == []


def test_a_pull_of_the_project_carries_no_results_and_no_local_state() -> None:
    unwanted = re.compile(r"(^|/)(node_modules|__pycache__|\.venv|dist)/|^benchmarks/results/|\.(log|db|sock|pyc)$")
    assert [name for name in tracked() if unwanted.search(name)] == []


def test_links_lead_to_files_of_the_project() -> None:
    require(shutil.which("git") and (ROOT / ".git").exists(), "not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-s", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    links = [entry.split("\t")[1] for entry in listed.stdout.split("\0") if entry.startswith("120000")]
    assert links
    for link in links:
        assert not os.path.isabs(os.readlink(ROOT / link)), link
        assert (ROOT / link).resolve().is_relative_to(ROOT), link


def test_make_alone_prints_the_menu() -> None:
    require(shutil.which("make"), "make is not installed")
    menu = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(MENU) <= set(re.findall(r"^ +make (\w+) +\S", menu, re.MULTILINE))


def test_make_reports_a_missing_python(tmp_path: Path) -> None:
    require(shutil.which("make"), "make is not installed")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "dataplane").mkdir()
    for name in ("pyproject.toml", "dataplane/pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    result = subprocess.run(["make", "lint", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "Larder needs Python 3.11 or newer" in result.stderr


def test_the_ci_script_can_be_run() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_changelog_has_the_version_on_top(version: str) -> None:
    headings = re.findall(r"^## \[?([\w.]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert version in headings[:2]


def test_the_wheels_ship_their_packages_and_nothing_else(tmp_path: Path, version: str) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    for folder in (ROOT, ROOT / "dataplane"):
        subprocess.run(build, cwd=folder, check=True, capture_output=True)
    with zipfile.ZipFile(tmp_path / f"larder_engine-{version}-py3-none-any.whl") as wheel:
        modules = {name for name in wheel.namelist() if not name.startswith("larder_engine-")}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "dataplane").rglob("*.py")}
    assert modules == sources
    with zipfile.ZipFile(tmp_path / f"larder-{version}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        scripts = wheel.read(f"larder-{version}.dist-info/entry_points.txt").decode()
    folders = {"app", "migrations", f"larder-{version}.dist-info"}
    assert {name.split("/")[0] for name in names} - {"web"} == folders
    assert {name for name in names if name.startswith("web/") and not name.startswith("web/dist/")} == set()
    pages = {name.removeprefix("app/manual/") for name in names if name.startswith("app/manual/")}
    docs = ROOT / "docs"
    files = [*docs.rglob("*.md"), *(docs / "pictures").rglob("*.*g")]
    assert pages == {str(file.relative_to(docs)) for file in files}
    assert "larder = app.__main__:main" in scripts
