"""Tokenizers: registered for models, and used to turn text into tokens."""

import asyncio
import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from app.errors import Conflict, Invalid
from app.ingest.fleet import Fleet
from app.schemas.base.fields import VARIABLE
from app.schemas.records.pins import PinPut
from app.schemas.records.tokenizers import (
    MAX_SPECIAL_CHARACTERS,
    TokenizerAnswer,
    TokenizerList,
    TokenizerPut,
    TokenizerUsed,
)
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition, state_of
from app.services.base.principals import PLANE, Principal
from app.services.base.redaction import tokenizer_of
from app.services.records.progress import RecordProgress
from app.services.records.record_types import RecordType, Values, columns
from app.services.records.records import RecordService
from app.services.records.tokenizing import EncodeService
from app.store.base.database import Database
from app.store.records import tokenizers
from app.store.records.tokenizers import TokenizerRow
from app.texts.jobs import MAX_CHARACTERS, MAX_TEMPLATE_CHARACTERS, EncodeJob
from dataplane.base.units import format_size

MAX_FILE_BYTES = 32 << 20
MAX_NAMED = 10
"""Number of models that an error message lists."""
TOKENIZERS = RecordType(
    noun="tokenizer",
    row=TokenizerRow,
    sortable=tokenizers.SORTABLE,
    key="name",
    put=TokenizerPut,
    answer=TokenizerAnswer,
    listing=TokenizerList,
    # The digest replaces the file.
    written=tuple("digest" if name == "tokenizer" else name for name in TokenizerPut.__struct_fields__),
)
_RESERVED = frozenset({"messages", "add_generation_prompt"})


@dataclass(frozen=True)
class EncodedText:
    """Tokens of a text."""

    tokens: Sequence[int]
    by: TokenizerUsed


class Tokenizers(RecordService[TokenizerRow, TokenizerPut, TokenizerAnswer]):
    kind = TOKENIZERS
    _locks = ("pins",)
    """Ensures that a model gets only one tokenizer."""

    def __init__(
        self, database: Database, changes: Changes, progress: RecordProgress, fleet: Fleet, tokenizing: EncodeService
    ) -> None:
        super().__init__(database, changes, progress, fleet)
        self._tokenizing = tokenizing

    async def _columns(self, name: str, intent: TokenizerPut, by: Principal) -> Values:
        file = await asyncio.to_thread(_file, intent.tokenizer)
        _check(intent, file)
        digest = await asyncio.to_thread(lambda: sha256(file).hexdigest())
        await self._tokenizing.run(EncodeJob(file, intent.chat_template), "tokenizer", by)
        values = {**msgspec.structs.asdict(intent), "digest": digest, "file": file}
        del values["tokenizer"]
        return values

    async def _store(self, change: Change, key: str, row: TokenizerRow | None, values: Values) -> TokenizerRow:
        existing = await tokenizers.of_model(change.session, values["model"])
        if existing is not None and existing.name != key:
            raise Conflict.at("model", f"the model {values['model']!r} already has the tokenizer {existing.name!r}")
        return await super()._store(change, key, row, values)

    def answers(self, rows: Sequence[TokenizerRow], by: Principal = PLANE) -> list[TokenizerAnswer]:
        return [tokenizer_of(answer, by) for answer in super().answers(rows)]

    async def patch(
        self,
        name: str,
        patch: dict[str, Any],
        by: Principal,
        expected: Precondition = ANY,
        wait_s: float = 0.0,
        *,
        dry_run: bool = False,
    ) -> TokenizerAnswer:
        """Apply a JSON merge patch; the file stays if the patch has none. Raises what `put` raises, and NotFound."""
        checks.pin_name(name)
        async with self._database.read() as session:
            row = self._visible(name, await tokenizers.with_file(session, name), by)
        self.kind.check_state(expected, name, row)
        values = {**columns(row, TOKENIZERS.written), "tokenizer": row.file.decode()}
        del values["digest"]
        request = patched(TokenizerPut, values, patch)
        answer, _ = await self.put(name, request, by, state_of(TOKENIZERS.etag(row)), dry_run=dry_run)
        return answer

    async def encoded(self, pin: PinPut, by: Principal) -> EncodedText | None:
        """Return the tokens of a pin's text or messages; None without them, or without a model, which the check of the
        pin reports. Raises Invalid, TooManyRequests."""
        if (pin.text is None and pin.messages is None) or not pin.model:
            return None
        prompt = pin.add_generation_prompt
        return await self.encode(pin.model, pin.text, pin.messages, by, add_generation_prompt=prompt)

    async def encode(
        self,
        model: str,
        text: str | None,
        messages: Sequence[dict[str, Any]] | None,
        by: Principal,
        *,
        add_generation_prompt: bool = False,
    ) -> EncodedText:
        """Return the tokens of a text or of messages, as engines of the model see them. Raises Invalid,
        TooManyRequests."""
        field = "messages" if text is None else "text"
        _check_length(field, text, messages)
        async with self._database.read() as session:
            row = await tokenizers.of_model(session, model)
            models = [] if row is not None else await tokenizers.models(session, MAX_NAMED + 1)
        if row is None:
            raise _unknown(field, model, models)
        if messages is not None and row.chat_template is None:
            message = f"the tokenizer {row.name!r} of {model!r} has no chat template; register it again with one"
            raise Invalid.at(field, message)
        job = EncodeJob(
            row.file,
            row.chat_template,
            row.special_tokens or {},
            row.add_special_tokens,
            text,
            None if messages is None else list(messages),
            add_generation_prompt,
        )
        done = await self._tokenizing.run(job, field, by)
        tokens = array("I", done.tokens)
        if sys.byteorder == "big":
            tokens.byteswap()
        return EncodedText(tokens, TokenizerUsed(row.name, row.digest))


def _file(file: dict[str, Any] | str | msgspec.UnsetType) -> bytes:
    """Return the file; empty if it is missing."""
    if isinstance(file, msgspec.UnsetType):
        return b""
    return file.encode() if isinstance(file, str) else msgspec.json.encode(file)


def _check(request: TokenizerPut, file: bytes) -> None:
    """Check a request. Raises Invalid with every fault found."""
    faults = checks.Faults()
    faults.check("model", lambda: checks.model(checks.given(request.model, "text")))
    faults.check("tokenizer", lambda: checks.given(request.tokenizer, "an object or text"))
    faults.check("note", lambda: checks.note(request.note))
    if len(file) > MAX_FILE_BYTES:
        faults.add("tokenizer", f"expected at most {format_size(MAX_FILE_BYTES)}, got {len(file)} bytes")
    if request.chat_template is not None and len(request.chat_template) > MAX_TEMPLATE_CHARACTERS:
        message = f"expected at most {MAX_TEMPLATE_CHARACTERS} characters, got {len(request.chat_template)}"
        faults.add("chat_template", message)
    if "\0" in (request.chat_template or ""):
        faults.add("chat_template", "expected no NUL characters")
    for name, token in (request.special_tokens or {}).items():
        if re.fullmatch(VARIABLE, name) is None or name in _RESERVED:
            faults.add("special_tokens", f"expected names such as bos_token, got {name[:40]!r}")
        elif len(token) > MAX_SPECIAL_CHARACTERS or "\0" in token:
            faults.add(f"special_tokens.{name}", f"expected at most {MAX_SPECIAL_CHARACTERS} characters, no NUL")
    faults.stop()


def _check_length(field: str, text: str | None, messages: Sequence[dict[str, Any]] | None) -> None:
    length = len(text or "") + sum(len(str(message)) for message in messages or ())
    if length > MAX_CHARACTERS:
        raise Invalid.at(field, f"expected at most {MAX_CHARACTERS} characters, got {length}")


def _unknown(field: str, model: str, models: list[str]) -> Invalid:
    ellipsis = ", …" if len(models) > MAX_NAMED else ""
    registered = (
        f"there are tokenizers for {', '.join(map(repr, models[:MAX_NAMED]))}{ellipsis}"
        if models
        else "no tokenizer is registered"
    )
    message = (
        f"there is no tokenizer for the model {model!r} ({registered}); add one with 'larder tokenizers set', or send "
        "tokens"
    )
    return Invalid.at(field, message)
