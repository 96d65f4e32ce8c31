"""/api/v1/tokenizers"""

from litestar import Response, Router, delete, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from app.http.parameters import Cursor, Limit, Sort
from app.http.preconditions import IfMatch, IfNoneMatch, expected
from app.http.principals import caller
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.tokenizers import TokenizerAnswer, TokenizerList, TokenizerPut
from app.services.records.tokenizers import MAX_FILE_BYTES, Tokenizers

MAX_BODY_BYTES = 2 * MAX_FILE_BYTES
"""Twice the file limit, because escaping makes a file larger inside a JSON string."""


@get(
    "/",
    operation_id="listTokenizers",
    summary="List tokenizers, without their files",
    opt={"role": "viewer", "scoped": True},
    responses=declared("invalid"),
)
async def list_tokenizers(
    tokenizers: NamedDependency[Tokenizers], sort: Sort = "", limit: Limit = 100, cursor: Cursor = ""
) -> TokenizerList:
    return await tokenizers.page(PageRequest(limit, cursor, sort), caller())


@get(
    "/{name:str}",
    operation_id="getTokenizer",
    summary="Get a tokenizer, without its file",
    opt={"role": "viewer", "scoped": True},
    responses=declared("not-found", "invalid"),
)
async def get_tokenizer(
    tokenizers: NamedDependency[Tokenizers], name: FromPath[str]
) -> Response[TokenizerAnswer]:
    answer = await tokenizers.get(name, caller())
    return Response(answer, headers={"ETag": answer.etag})


@put(
    "/{name:str}",
    operation_id="putTokenizer",
    summary=("Register the tokenizer of a model, so that pins and look-ups accept text and messages"),
    opt={"body": TokenizerPut, "role": "operator"},
    request_max_body_size=MAX_BODY_BYTES,
    responses={
        201: ResponseSpec(TokenizerAnswer, generate_examples=False, description="The record was created."),
        **declared(
            "malformed",
            "invalid",
            "conflict",
            "precondition-failed",
            "precondition-required",
            "unsupported-media-type",
            "too-large",
        ),
    },
)
async def put_tokenizer(
    tokenizers: NamedDependency[Tokenizers],
    name: FromPath[str],
    data: JSONBody[TokenizerPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response[TokenizerAnswer]:
    with span("tokenizers.put"):
        answer, created = await tokenizers.put(name, data, caller(), expected(if_match, if_none_match))
    return Response(answer, status_code=201 if created else 200, headers={"ETag": answer.etag})


@delete(
    "/{name:str}",
    operation_id="deleteTokenizer",
    summary="Delete a tokenizer; pins that were created with it stay",
    opt={"role": "operator"},
    responses=declared("not-found", "malformed", "invalid", "precondition-failed", "precondition-required"),
)
async def delete_tokenizer(
    tokenizers: NamedDependency[Tokenizers], name: FromPath[str], if_match: IfMatch = None
) -> None:
    with span("tokenizers.delete"):
        await tokenizers.delete(name, caller(), expected(if_match))


router = Router(
    "/tokenizers",
    route_handlers=[list_tokenizers, get_tokenizer, put_tokenizer, delete_tokenizer],
    tags=["tokenizers"],
)
