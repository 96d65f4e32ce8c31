"""Credentials of tiers in variables: the settings and the record of docs/operate/tiers.md fit together."""

import re
from pathlib import Path

import pytest
import yaml

from app.supervisor.environ import environ_of
from dataplane import settings
from dataplane.base import allowed_secrets
from dataplane.protocol.tiers import TierSpec
from dataplane.tiers.references import resolve
from dataplane.tiers.registry import tier_faults_of

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "tiers.md"
SECRETS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
SETTING = "LARDER_DATAPLANE__TIER_SECRETS"


@pytest.fixture(autouse=True)
def no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def record() -> TierSpec:
    """The record of the page that names the two variables."""
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"--parameters '\n([^']*AWS_ACCESS_KEY_ID[^']*)'", page)
    return TierSpec("cold", "s3", 1 << 30, yaml.safe_load(text))


def test_the_settings_of_the_page_permit_its_record_to_use_the_variables(
    record: TierSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(\[dataplane\]\ntier_secrets = .*?)```", page, re.DOTALL)
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="utf-8")
    environ = environ_of({**SECRETS, "LARDER_CONFIG": str(file)})
    assert environ.items() >= SECRETS.items()
    allowed = settings.load(environ=environ).table.tier_secrets
    assert list(allowed_secrets.faults(record.parameters, allowed)) == []
    assert list(tier_faults_of(record)) == []
    for name in SECRETS:
        monkeypatch.setenv(name, environ[name])
    references = record.parameters["credentials"]
    assert [resolve(name, reference) for name, reference in references.items()] == list(SECRETS.values())


def test_by_default_the_record_is_refused_and_the_variables_are_not_passed_on(record: TierSpec) -> None:
    environ = environ_of(SECRETS)
    assert not environ.keys() & SECRETS.keys()
    found = dict(allowed_secrets.faults(record.parameters, settings.load(environ=environ).table.tier_secrets))
    assert found.keys() == {"parameters.credentials.access_key_id", "parameters.credentials.secret_access_key"}


def test_the_variable_that_the_page_names_passes_them_on() -> None:
    (value,) = re.findall(rf"`{SETTING}=([^`]*)`", PAGE.read_text(encoding="utf-8"))
    assert environ_of({**SECRETS, SETTING: value}).items() >= SECRETS.items()
