"""/api/v1/quotas, pins, policies, tiers, ceilings, rates and tokenizers: a row for each type of records."""

from typing import Annotated

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from app.http.operation import operation
from app.http.parameters import OfModel, OfOwner, OfTenant, RecordName, TierRecordName, Wait, in_query, wait_seconds
from app.http.preconditions import with_etag
from app.http.principals import caller
from app.http.routes.records.factory import RecordRoutes, record_router
from app.observe.trace import span
from app.schemas.records.pins import PinAnswer, PinExtend, PinKeys, PinSource
from app.schemas.records.tiers import TierDeletion
from app.services.records.ceilings import Ceilings
from app.services.records.pins import Pins
from app.services.records.policies import Policies
from app.services.records.prefill_rates import PrefillRates
from app.services.records.quotas import Quotas
from app.services.records.tiers import Tiers
from app.services.records.tokenizers import MAX_FILE_BYTES, Tokenizers
from dataplane.protocol.control.records import Algorithm, Mode, Strength, Tier

EXTEND = ":extend"
MAX_BODY_BYTES = 2 * MAX_FILE_BYTES
"""Twice the limit of a tokenizer's file, because escaping makes a file larger inside a JSON string."""


@operation(get, "/{name:str}/keys", "not-found", "invalid", role="viewer", scoped=True)
async def get_pin_keys(pins: NamedDependency[Pins], name: RecordName) -> PinKeys:
    """Get the keys of a pin."""
    return await pins.keys(name, caller())


@operation(post, "/{name:str}", "not-found", "conflict", role="operator", scoped=True, opt={"suffixes": {EXTEND: {}}})
async def extend_pin(
    pins: NamedDependency[Pins], name: RecordName, data: JSONBody[PinExtend], wait: Wait = ""
) -> Response[PinAnswer]:
    """Extend a pin to at least `ttl_s` from now."""
    with span("pins.extend"):
        answer = await pins.extend(name.removesuffix(EXTEND), data, caller(), wait_seconds(wait))
    return with_etag(answer)


routers = (
    record_router(
        RecordRoutes(
            service=Quotas,
            plural="quotas",
            scoped_reads=True,
            scoped_writes=True,
            refusals=("floors-exceed-capacity",),
            filters={
                "mode": Annotated[Mode | None, QueryParameter(description="Only quotas of this mode.")],
                "managed_by": OfOwner,
            },
            about={
                "list": "List quotas.",
                "get": "Get a tenant's quota.",
                "put": "Set a tenant's quota.",
                "delete": "Delete a tenant's quota; the tenant may then use free memory without a limit or a floor.",
            },
        )
    ),
    record_router(
        RecordRoutes(
            service=Pins,
            plural="pins",
            scoped_reads=True,
            scoped_writes=True,
            put_refusals=("node-unreachable",),
            kept=PinSource,
            filters={
                "tenant": OfTenant,
                "model": OfModel,
                "strength": Annotated[Strength | None, QueryParameter(description="Only pins of this strength.")],
                "tier": Annotated[Tier | None, QueryParameter(description="Only pins of this tier.")],
                "managed_by": OfOwner,
            },
            about={
                "list": "List pins.",
                "put": "Pin a prefix.",
                "patch": "Change a pin's strength, tier, expiry or note (JSON merge patch); the pinned prefix stays "
                "the same.",
                "delete": "Delete a pin; its blocks may then be evicted like any others.",
            },
        ),
        get_pin_keys,
        extend_pin,
    ),
    record_router(
        RecordRoutes(
            service=Policies,
            plural="policies",
            filters={
                "algorithm": Annotated[
                    Algorithm | None, QueryParameter(description="Only policies with this algorithm.")
                ],
                "managed_by": OfOwner,
            },
            about={
                "list": "List policies, and those that nodes have in force.",
                "put": "Set a policy; running nodes switch to it and keep the cache.",
                "delete": "Delete a policy; its nodes apply another one that matches, or their defaults.",
            },
        )
    ),
    record_router(
        RecordRoutes(
            service=Tiers,
            plural="tiers",
            new_name=TierRecordName,
            deletion=TierDeletion,
            filters={"type": Annotated[str | None, in_query("Only tiers of this type.")], "managed_by": OfOwner},
            about={
                "list": "List tiers, and their state on nodes.",
                "put": "Set a tier; running nodes open it, or change it and keep its blocks.",
                "delete": "Delete a tier; its nodes close it, and its blocks stay where they are.",
            },
        )
    ),
    record_router(
        RecordRoutes(
            service=Ceilings,
            plural="ceilings",
            role="admin",
            scoped_reads=True,
            about={
                "list": "List ceilings; callers that are limited to tenants see only those of their tenants.",
                "get": "Get a tenant's ceiling: bounds for callers that are limited to the tenant.",
                "put": "Set a tenant's ceiling; quotas above it stay until they are changed.",
                "delete": "Delete a tenant's ceiling; callers that are limited to the tenant may then not change its "
                "quota.",
            },
        )
    ),
    record_router(
        RecordRoutes(
            service=PrefillRates,
            plural="rates",
            tag="usage",
            filters={"model": OfModel},
            about={
                "list": "List prefill rates.",
                "get": "Get a prefill rate.",
                "put": "Set a prefill rate: the tokens per second that a model's engines compute.",
                "patch": "Change some fields of a prefill rate (JSON merge patch: null resets a field to its default).",
                "delete": "Delete a prefill rate.",
            },
        )
    ),
    record_router(
        RecordRoutes(
            service=Tokenizers,
            plural="tokenizers",
            scoped_reads=True,
            limit=100,
            max_body_bytes=MAX_BODY_BYTES,
            about={
                "list": "List tokenizers, without their files.",
                "get": "Get a tokenizer, without its file.",
                "put": "Register the tokenizer of a model, so that pins and look-ups accept text and messages.",
                "patch": "Change some fields of a tokenizer (JSON merge patch: null resets a field to its default); "
                "its file stays unless the patch has one.",
                "delete": "Delete a tokenizer; pins that were created with it stay.",
            },
        )
    ),
)
