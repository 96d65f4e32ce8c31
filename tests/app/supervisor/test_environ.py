"""The data plane inherits the variables that records of tiers may name, and no others that may be secret."""

from pathlib import Path

import pytest

from app.supervisor.environ import environ_of

SECRETS = {"TIER_KEY": "k1", "S3_KEY": "k2", "OTHER_KEY": "k3", "LARDER_TOKEN": "k4", "LARDER_DATABASE_URL": "k5"}
SETTING = "LARDER_DATAPLANE__TIER_SECRETS"


@pytest.fixture(autouse=True)
def no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def inherited(environ: dict[str, str]) -> set[str]:
    return SECRETS.keys() & environ_of(environ).keys()


def test_the_default_of_tier_secrets_passes_variables_of_tiers_on() -> None:
    assert inherited(SECRETS) == {"TIER_KEY"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("env:S3_*", {"S3_KEY"}),
        ("env:S3_KEY, env:TIER_KEY", {"S3_KEY", "TIER_KEY"}),
        ("env:LARDER_*", set()),
        ("env:*", {"TIER_KEY", "S3_KEY", "OTHER_KEY"}),
        ("file:/run/secrets/*", set()),
        ("", set()),
    ],
)
def test_tier_secrets_names_the_variables_that_are_passed_on(setting: str, expected: set[str]) -> None:
    assert inherited({**SECRETS, SETTING: setting}) == expected


def test_tier_secrets_is_read_from_the_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    environ = {**SECRETS, "LARDER_CONFIG": str(file)}
    file.write_text('[dataplane]\ntier_secrets = ["env:S3_*"]\n')
    assert inherited(environ) == {"S3_KEY"}
    assert inherited({**environ, SETTING: "env:OTHER_KEY"}) == {"OTHER_KEY"}
    for unreadable in ("[dataplane", "dataplane = 1", "[dataplane]\ntier_secrets = [1]"):
        file.write_text(unreadable)
        assert inherited(environ) <= {"TIER_KEY"}, unreadable
