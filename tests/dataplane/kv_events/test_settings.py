"""Settings of KV events: validation and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.base.settings import SettingsError
from dataplane.settings import load, rank_url

URL = "tcp://127.0.0.1:5557"


def refusal(folder: Path, url: str = URL, **table: str) -> str:
    environ = {"LARDER_STATE_DIR": str(folder), "LARDER_POOL_BYTES": "16MiB", "LARDER_KV_EVENTS_URL": url}
    environ |= {f"LARDER_DATAPLANE__KV_EVENTS_{name.upper()}": value for name, value in table.items()}
    try:
        load(environ=environ)
    except SettingsError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:5557", "127.0.0.1:5557", "tcp://127.0.0.1", "inproc://x", "ipc://x", "tcp://*:70000", "x"]
)
def test_an_invalid_endpoint_is_refused(tmp_path: Path, url: str):
    expected = f"expected tcp://HOST:PORT, or ipc:// and an absolute path, got {url!r}"
    assert refusal(tmp_path, url) == f"kv_events_url: {expected}"
    assert refusal(tmp_path, replay_url=url) == f"dataplane.kv_events_replay_url: {expected}"


@pytest.mark.parametrize("url", [URL, "tcp://*:5557", "tcp://[::1]:5557", "ipc:///run/kv.sock", "tcp://0.0.0.0:0", ""])
def test_valid_endpoints_and_an_empty_one_are_accepted(tmp_path: Path, url: str):
    assert refusal(tmp_path, url) == ""


def test_an_endpoint_has_one_use(tmp_path: Path):
    assert "is the endpoint of kv_events_url already" in refusal(tmp_path, replay_url=URL)
    assert "is the endpoint of events_url already" in refusal(tmp_path, f"ipc://{tmp_path}/events.sock")
    assert "is the endpoint of engine_socket already" in refusal(tmp_path, f"ipc://{tmp_path}/engine.sock")
    assert "5558 is the endpoint of kv_events_url already" in refusal(
        tmp_path, replay_url="tcp://127.0.0.1:5558", ranks="2"
    )


def test_token_ids_on_a_remote_address_need_a_second_setting(tmp_path: Path):
    assert "can be reached from other machines" in refusal(tmp_path, "tcp://0.0.0.0:5557", token_ids="true")
    assert "can be reached from other machines" in refusal(tmp_path, token_ids="true", replay_url="tcp://*:5558")
    assert refusal(tmp_path, token_ids="true") == ""
    assert refusal(tmp_path, "tcp://*:5557", token_ids="true", remote_token_ids="true") == ""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("format", "json", "expected one of map, array, got 'json'"),
        ("ranks", "0", "expected 1 to 64"),
        ("hwm", "0", "expected 1 to 1000000"),
        ("buffer_steps", "-1", "expected 1 to 1000000"),
        ("block_tokens", "-1", "expected 0 to 1048576"),
        ("medium", "", "expected 1 to 64 letters"),
        ("medium", "CPU 1", "expected 1 to 64 letters"),
        ("topics", "kv\nx", "at most 256 printable characters"),
        ("topics", ",".join(["a"] * 65), "expected at most 64 topics"),
    ],
)
def test_values_out_of_range_are_refused(tmp_path: Path, name: str, value: str, expected: str):
    text = refusal(tmp_path, **{name: value})
    assert expected in text
    assert f"kv_events_{name}" in text.lower()


def test_the_port_of_the_last_rank_must_exist(tmp_path: Path):
    assert refusal(tmp_path, "tcp://127.0.0.1:65535", ranks="2") == "kv_events_url: rank 1 would have port 65536"


def test_settings_of_events_that_are_off_are_refused(tmp_path: Path):
    assert "kv_events_url: expected an endpoint" in refusal(tmp_path, "", replay_url=URL)
    assert "kv_events_url: expected an endpoint" in refusal(tmp_path, "", token_ids="true")


def test_ranks_have_the_endpoints_that_vllm_gives_them():
    assert rank_url("tcp://*:5557", 3) == "tcp://*:5560"
    assert rank_url("tcp://[::1]:5557", 1) == "tcp://[::1]:5558"
    assert rank_url("ipc:///run/kv", 2) == "ipc:///run/kv_dp2"
    assert rank_url("", 2) == ""
    assert rank_url("tcp://*:0", 2) == "tcp://*:0"
