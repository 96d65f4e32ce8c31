"""Ask a model a question that it answers with a tool. Requests name their session, and tool calls retain its blocks."""

import argparse
import json
import os
import sys
import uuid
from typing import Any

import httpx

from examples.agent.sessions import Session

MAX_TURNS = 8
ANSWER_S = 600.0
"""Longest wait for an answer of the model."""
COUNT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count how often a letter occurs in a text.",
        "parameters": {
            "type": "object",
            "properties": {"letter": {"type": "string"}, "text": {"type": "string"}},
            "required": ["letter", "text"],
        },
    },
}
"""The tool of this agent."""


class ExampleError(Exception):
    """Raised when the example cannot continue. The message says why."""


def answer(engine: httpx.Client, model: str, session: Session, question: str) -> str:
    """Run the loop of an agent: ask the model, run the tools that it calls, and ask again. Return its answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        request = {"model": model, "messages": messages, "tools": [COUNT], **session.fields}
        response = engine.post("/v1/chat/completions", json=request)
        response.raise_for_status()
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"] or ""
        with session.tool_call():
            messages += [result_of(call) for call in message["tool_calls"]]
    raise ExampleError(f"the model called tools in each of {MAX_TURNS} turns")


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    """Run a tool call of the model, and return the message with its result."""
    try:
        arguments = json.loads(call["function"]["arguments"])
        result = str(arguments["text"].count(arguments["letter"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        result = f"expected a letter and a text: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": result}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make example-agent", description=__doc__)
    parser.add_argument("question", nargs="?", default="How many r are in strawberry?")
    parser.add_argument("--model", required=True, help="name of the model that the engine serves")
    parser.add_argument("--engine", default="http://127.0.0.1:8000", help="URL of an OpenAI-compatible server")
    parser.add_argument("--larder", default=os.environ.get("LARDER_URL", "http://127.0.0.1:8470"), help="URL of Larder")
    parser.add_argument(
        "--larder-timeout", type=float, default=2.0, help="longest wait for an answer of Larder, in seconds"
    )
    parser.add_argument("--tenant", default="agents", help="tenant of the requests")
    options = parser.parse_args()
    token = os.environ.get("LARDER_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with (
            httpx.Client(base_url=options.engine, timeout=ANSWER_S, trust_env=False) as engine,
            httpx.Client(
                base_url=options.larder, timeout=options.larder_timeout, trust_env=False, headers=headers
            ) as larder,
            Session(larder, f"agent-{uuid.uuid4().hex[:12]}", options.tenant) as session,
        ):
            print(answer(engine, options.model, session, options.question))
    except (ExampleError, httpx.HTTPError) as error:
        sys.exit(f"example-agent: {error}")


if __name__ == "__main__":
    main()
