"""Settings `larder.*`: an invalid setting raises an error with its name and the expected value."""

import pytest

from dataplane.engines.vllm.settings import ConnectorSettings, read_settings


def test_settings_of_other_programs_are_ignored_and_defaults_apply() -> None:
    settings = read_settings({"lmcache.mp.port": 5555, "larder.socket": "/s"}, {})
    assert settings == ConnectorSettings(socket="/s")


@pytest.mark.parametrize(
    ("environ", "socket"),
    [
        ({"LARDER_ENGINE_SOCKET": "/run/a.sock"}, "/run/a.sock"),
        ({"LARDER_STATE_DIR": "/var/lib/larder"}, "/var/lib/larder/engine.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/larder/engine.sock"),
    ],
)
def test_the_socket_is_found_as_the_data_plane_names_it(environ: dict[str, str], socket: str) -> None:
    assert read_settings({}, environ).socket == socket


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"larder.chunks": 1}, r"larder\.chunks: unknown; expected one of larder\.socket, "),
        ({"larder.chunk_tokens": "many"}, r"larder\.chunk_tokens: expected `int`, got `str`"),
        ({"larder.chunk_tokens": 0}, r"larder\.chunk_tokens: expected `int` >= 1"),
        ({"larder.min_load_tokens": -1}, r"larder\.min_load_tokens: expected auto or a number of at least 0, got -1"),
        (
            {"larder.min_load_tokens": "never"},
            r"larder\.min_load_tokens: expected auto or a number of at least 0, got 'never'",
        ),
        ({"larder.verify": "yes"}, r"larder\.verify: expected off, sample or always, got 'yes'"),
        ({"larder.save_decode": "on"}, r"larder\.save_decode: expected `bool`, got `str`"),
        ({"larder.tier_timeout_s": -1}, r"larder\.tier_timeout_s: expected `float` >= 0\.0"),
        ({"larder.timeout_s": 0}, r"larder\.timeout_s: expected `float` >= 0\.01"),
    ],
)
def test_wrong_settings_are_named(extra: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"^kv_connector_extra_config\." + message):
        read_settings(extra, {})
