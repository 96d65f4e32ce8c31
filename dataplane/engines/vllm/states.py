"""Recurrent state of hybrid models (Mamba, gated delta nets, short convolutions) beside attention.

Of a layer with recurrent state, vLLM's block holds the state after all tokens up to the block's end, and not values of
these tokens alone. With `mamba_cache_mode` `align`, vLLM ends the steps of a prompt at multiples of its block size, and
a step leaves the state at its end; some layers also leave one at the last multiple before it. Other blocks of the step
do not exist.

Larder stores a state under the key of the chunk that ends where the state is. So that this works for all states, a
chunk of such a model is one block of vLLM. A load needs one state: that at its end (`Space.tail_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm
from typing import Any

BlockIds = Sequence[Sequence[int]]
"""The engine's blocks of a request for each KV-cache group."""


def specs_of(spec: Any) -> Iterable[Any]:
    """Return the specs of the layers of a KV-cache group."""
    layers = getattr(spec, "kv_cache_specs", None)
    return [spec] if layers is None else layers.values()


def has_states(spec: Any) -> bool:
    """Return whether the layers of a KV-cache group have recurrent state."""
    return any(type(layer_spec).__name__ == "MambaSpec" for layer_spec in specs_of(spec))


class StateGroups:
    """The groups of a model that have states. With several block sizes, a chunk has several blocks of a group; here,
    groups of states have one block for each chunk."""

    def __init__(self, kv_cache_config: Any) -> None:
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self.block_tokens = lcm(*(spec.block_size for spec in specs))
        """vLLM's scheduling granularity. If the model has groups of states, a chunk has as many tokens. It follows from
        the groups alone, which both sides of the connector have: `cache_config.block_size` may differ in workers."""
        self._pages = [self.block_tokens // spec.block_size if has_states(spec) else 0 for spec in specs]
        """vLLM's blocks of a chunk; 0 for a group without states."""

    def __bool__(self) -> bool:
        """Return whether the model has groups of states."""
        return any(self._pages)

    def at_chunk_ends(self, blocks: BlockIds) -> BlockIds:
        """Return the blocks of a request whose load vLLM has just allocated. Of the states, it has allocated the one at
        the end of the load."""
        return [ids[pages - 1 :: pages] if pages else ids for ids, pages in zip(blocks, self._pages, strict=True)]

    def left_by(self, blocks: BlockIds, end: int | None, offers: Iterable[tuple[int, int, int]]) -> BlockIds:
        """Return the blocks of a request after a step that computes its tokens up to `end`, None if that is not known.
        `offers`: the group, the block and the end in tokens of further states that the step leaves. The blocks of all
        other states are 0: they may hold later states."""
        found = []
        for ids, pages in zip(blocks, self._pages, strict=True):
            states = [0] * (len(ids) // pages) if pages else list(ids)
            if pages and end is not None and not end % self.block_tokens:
                chunks = end // self.block_tokens
                states[chunks - 1] = ids[chunks * pages - 1]
            found.append(states)
        for group, block, tokens in offers:
            if self._pages[group] and not tokens % self.block_tokens:
                found[group][tokens // self.block_tokens - 1] = block
        return found


def ends_of(scheduler_output: Any) -> dict[str, int]:
    """Return the number of tokens that each request of a step has when the step has ended, as far as it says so."""
    running = scheduler_output.scheduled_cached_reqs
    computed = dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
    computed.update((request.req_id, request.num_computed_tokens) for request in scheduler_output.scheduled_new_reqs)
    counts = scheduler_output.num_scheduled_tokens
    return {name: computed[name] + count for name, count in counts.items() if name in computed}
