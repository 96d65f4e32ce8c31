"""Settings of the connector: the keys `larder.*` of vLLM's `kv_connector_extra_config`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from dataplane.client.integrity import Verify
from dataplane.engines.settings import default_socket, read
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS
from dataplane.protocol.spaces import MAX_BLOCK_TOKENS

CONTAINER = "kv_connector_extra_config"
_CHOICES = {"verify": "off, sample or always", "min_load_tokens": "auto or a number of at least 0"}
"""Valid values of settings, for errors in which msgspec does not list them."""
Seconds = Annotated[float, msgspec.Meta(ge=0.01, le=60)]


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one engine."""

    socket: str = ""
    """Engine socket of the data plane. Default: LARDER_ENGINE_SOCKET, else the socket in LARDER_STATE_DIR, else the
    default socket of the user."""
    model: str = ""
    """Name of the model in Larder, which pins refer to. If it is set, the operator vouches that equal names mean equal
    weights. Default: the repository, or, of a folder, vLLM's `--served-model-name`, else the architecture; a
    fingerprint of the weights is then part of the space."""
    chunk_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_TOKENS)] = DEFAULT_CHUNK_TOKENS
    """Number of tokens in a chunk: a multiple of the engine's block size, equal in all engines that share blocks. A
    model with recurrent state has chunks of one block instead."""
    save_decode: bool = False
    """Whether whole chunks with generated tokens are stored too."""
    min_load_tokens: Annotated[int, msgspec.Meta(ge=0)] | Literal["auto"] = "auto"
    """A prefix with fewer tokens is recomputed. With "auto", a prefix is recomputed if measured rates say that this is
    faster than loading it."""
    verify: Verify = "off"
    """Whether checksums of blocks are verified before a load: "off", "sample" (some blocks) or "always"."""
    checksums: bool = True
    """Whether stored blocks get a checksum."""
    timeout_s: Seconds = 0.25
    """Longest wait for a response of the data plane. Only the connector's own threads wait that long; a step waits at
    most 0.25 s until its blocks are reserved."""
    load_timeout_s: Seconds = 5.0
    """Longest duration of a load. A load that takes longer fails, and its missing tokens are recomputed."""
    step_load_s: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """Longest time that a step waits for prefixes that are copied before its layers run, on engines where that is safe.
    After it, missing tokens are recomputed. With 0, all loads run beside steps."""
    tier_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 5.0
    """Longest time that a request waits for blocks from tiers behind memory, such as disks, and for blocks that another
    engine is writing. After it, missing tokens are recomputed. With 0, the connector does neither."""
    pending_save_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 4 << 30
    """Largest number of bytes that wait to be copied into the pool. Saves that would exceed it are dropped and
    counted."""


def read_settings(extra: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> ConnectorSettings:
    """Return the settings. Raise ValueError, whose message names the key and the expected value.

    Keys without the prefix `larder.` belong to other programs and are ignored.
    """
    settings = read(ConnectorSettings, extra, CONTAINER, _CHOICES)
    return settings if settings.socket else msgspec.structs.replace(settings, socket=default_socket(environ))
