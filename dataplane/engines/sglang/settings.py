"""Settings of the backend: the keys `larder.*` of SGLang's `--hicache-storage-backend-extra-config`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from dataplane.client.integrity import Verify
from dataplane.engines.settings import PREFIX, default_socket, read
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.salts import check_salt

CONTAINER = "hicache_storage_backend_extra_config"
CHOICES = {"verify": "off, sample or always"}


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one engine."""

    socket: str = ""
    """Engine socket of the data plane. Default: LARDER_ENGINE_SOCKET, else the socket in LARDER_STATE_DIR, else the
    default socket of the user."""
    tenant: str = ""
    """Tenant that all pages of the engine are charged to. Engines share pages only if they have the same tenant."""
    model: str = ""
    """Name of the model in Larder. If it is set, the operator vouches that equal names mean equal weights. Default:
    SGLang's `--served-model-name`, else the repository, or, of a folder, its architecture; a fingerprint of the weights
    is then part of the space."""
    revision: str = ""
    """Text that distinguishes weights of one name. SGLang's weight version, quantization, KV dtype and overrides of the
    model's configuration are distinguished anyway."""
    verify: Verify = "off"
    """Whether checksums of pages are verified before they are copied: "off", "sample" (some pages) or "always"."""
    checksums: bool = True
    """Whether stored pages get a checksum."""
    timeout_s: Annotated[float, msgspec.Meta(ge=0.01, le=60)] = 0.25
    """Longest wait for a response of the data plane. Only SGLang's storage threads wait."""
    tier_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 1.0
    """Longest time that a look-up waits for pages from tiers behind memory, such as disks or stores that nodes share.
    Other look-ups of the engine wait behind it. With 0, look-ups do not use tiers."""
    copy_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    """Number of threads that copy the pages of one call."""


def read_settings(extra: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> BackendSettings:
    """Return the settings. Raise ValueError, whose message names the key and the expected value.

    Keys without the prefix `larder.` are SGLang's, of which only `interface_v1` is read.
    """
    settings = read(BackendSettings, extra, CONTAINER, CHOICES)
    try:
        check_salt(settings.tenant)
    except ProtocolError as error:
        raise ValueError(f"{CONTAINER}.{PREFIX}tenant: {error.message}") from None
    if extra.get("interface_v1") not in (1, True):
        raise ValueError(f"{CONTAINER}.interface_v1: expected 1, got {extra.get('interface_v1')!r}")
    return settings if settings.socket else msgspec.structs.replace(settings, socket=default_socket(environ))
