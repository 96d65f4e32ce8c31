"""/api/v1/tokenizers"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import Cursor, DryRun, Limit, RecordName, sort_by
from app.http.preconditions import PRECONDITIONS, WRITES, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.tokenizers import TokenizerAnswer, TokenizerList, TokenizerPut
from app.services.records.tokenizers import MAX_FILE_BYTES, TOKENIZERS, Tokenizers

MAX_BODY_BYTES = 2 * MAX_FILE_BYTES
"""Twice the file limit, because escaping makes a file larger inside a JSON string."""

_Sort = Annotated[str, sort_by(TOKENIZERS.sortable)]


@operation(get, "/", "invalid", role="viewer", scoped=True)
async def list_tokenizers(
    tokenizers: NamedDependency[Tokenizers], sort: _Sort = "", limit: Limit = 100, cursor: Cursor = ""
) -> TokenizerList:
    """List tokenizers, without their files."""
    return await tokenizers.page(PageRequest(limit, cursor, sort), caller())


@operation(get, "/{name:str}", "not-found", "invalid", role="viewer", scoped=True)
async def get_tokenizer(tokenizers: NamedDependency[Tokenizers], name: RecordName) -> Response[TokenizerAnswer]:
    """Get a tokenizer, without its file."""
    return with_etag(await tokenizers.get(name, caller()))


@operation(put, "/{name:str}", *WRITES, role="operator", request_max_body_size=MAX_BODY_BYTES)
async def put_tokenizer(
    tokenizers: NamedDependency[Tokenizers],
    name: RecordName,
    data: JSONBody[TokenizerPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    dry_run: DryRun = False,
) -> Response[TokenizerAnswer]:
    """Register the tokenizer of a model, so that pins and look-ups accept text and messages."""
    state = expected(if_match, if_none_match)
    with span("tokenizers.put"):
        answer, created = await tokenizers.put(name, data, caller(), state, dry_run=dry_run)
    return with_etag(answer, created=created)


@operation(patch, "/{name:str}", "not-found", *WRITES, role="operator", request_max_body_size=MAX_BODY_BYTES)
async def patch_tokenizer(
    tokenizers: NamedDependency[Tokenizers],
    name: RecordName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[TokenizerAnswer]:
    """Change some fields of a tokenizer (JSON merge patch: null resets a field to its default); its file stays
    unless the patch has one."""
    with span("tokenizers.patch"):
        answer = await tokenizers.patch(name, data, caller(), expected(if_match), dry_run=dry_run)
    return with_etag(answer)


@operation(delete, "/{name:str}", "not-found", *PRECONDITIONS, role="operator")
async def delete_tokenizer(tokenizers: NamedDependency[Tokenizers], name: RecordName, if_match: IfMatch = None) -> None:
    """Delete a tokenizer; pins that were created with it stay."""
    with span("tokenizers.delete"):
        await tokenizers.delete(name, caller(), expected(if_match))


router = Router(
    "/tokenizers",
    route_handlers=[list_tokenizers, get_tokenizer, put_tokenizer, patch_tokenizer, delete_tokenizer],
    tags=["tokenizers"],
)
