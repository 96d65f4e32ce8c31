"""Run one job: load the tokenizer, render the template, encode the text."""

from __future__ import annotations

import sys
from array import array

from tokenizers import Tokenizer

from app.texts.jobs import MAX_CHARACTERS, MAX_TEMPLATE_CHARACTERS, Answer, EncodeError, EncodeJob, EncodeResult
from app.texts.templates import UnusableTemplate, compiled, rendered


def work(job: EncodeJob) -> Answer:
    """Run a job. Return an EncodeError, and raise nothing, for invalid input."""
    if job.template is not None and len(job.template) > MAX_TEMPLATE_CHARACTERS:
        return EncodeError("chat_template", f"expected at most {MAX_TEMPLATE_CHARACTERS} characters")
    try:
        tokenizer = Tokenizer.from_buffer(job.file)
        # Engines never truncate or pad their prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        return EncodeError("tokenizer", f"this is not a valid tokenizer.json: {str(error)[:300]}")
    try:
        template = None if job.template is None else compiled(job.template)
    except UnusableTemplate as error:
        return EncodeError("chat_template", str(error))
    field, text, special = "text", job.text, job.add_special_tokens
    if job.messages is not None:
        if template is None:
            return EncodeError("messages", "the tokenizer has no chat template")
        try:
            text = rendered(template, job.messages, job.special_tokens, add_generation_prompt=job.add_generation_prompt)
        except UnusableTemplate as error:
            return EncodeError("messages", str(error))
        field, special = "messages", False
    if text is None:
        return EncodeResult(b"", tokenizer.get_vocab_size())
    if len(text) > MAX_CHARACTERS:
        return EncodeError(field, f"expected at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        ids = tokenizer.encode(text, add_special_tokens=special).ids
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        return EncodeError(field, f"the tokenizer failed on this text: {str(error)[:300]}")
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return EncodeResult(packed.tobytes(), tokenizer.get_vocab_size())
