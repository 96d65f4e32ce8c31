"""One job: load the tokenizer, render the template, encode."""

from __future__ import annotations

import sys
from array import array

from tokenizers import Tokenizer

from app.texts.jobs import MAX_CHARACTERS, MAX_TEMPLATE_CHARACTERS, Answer, Done, Failed, Job
from app.texts.templates import Unusable, compiled, rendered


def work(job: Job) -> Answer:
    """Nothing that is wrong with the job raises."""
    if job.template is not None and len(job.template) > MAX_TEMPLATE_CHARACTERS:
        return Failed("chat_template", f"expected at most {MAX_TEMPLATE_CHARACTERS} characters")
    try:
        tokenizer = Tokenizer.from_buffer(job.file)
        # What engines are given is never cut or filled up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        return Failed("tokenizer", f"this is no tokenizer.json: {str(error)[:300]}")
    try:
        template = None if job.template is None else compiled(job.template)
    except Unusable as error:
        return Failed("chat_template", str(error))
    field, text, special = "text", job.text, job.add_special_tokens
    if job.messages is not None:
        if template is None:
            return Failed("messages", "the tokenizer has no chat template")
        try:
            text = rendered(
                template, job.messages, job.special_tokens, add_generation_prompt=job.add_generation_prompt
            )
        except Unusable as error:
            return Failed("messages", str(error))
        field, special = "messages", False
    if text is None:
        return Done(b"", tokenizer.get_vocab_size())
    if len(text) > MAX_CHARACTERS:
        return Failed(field, f"expected at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        ids = tokenizer.encode(text, add_special_tokens=special).ids
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        return Failed(field, f"the tokenizer failed on this text: {str(error)[:300]}")
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return Done(packed.tobytes(), tokenizer.get_vocab_size())
