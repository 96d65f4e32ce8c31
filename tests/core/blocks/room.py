"""What a refusal must mean, worked out from where blocks are and nothing else; and random traffic to check it on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dataplane.core.blocks.blocks import Block
from dataplane.core.blocks.slabs import SMALL_SLAB_BYTES, SMALL_SLOT_BYTES, slot_bytes
from dataplane.protocol.codes import Code
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.states import State
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine, Stored

SPACES = 2
ROOM = {Code.FRAGMENTED, Code.POOL_FULL}


class Oracle:
    """Whether anything in a pool could serve a block of `size` in `space` while `excluded` keys stay."""

    def __init__(self, bench: Bench, space: int, size: int, excluded: Sequence[bytes]) -> None:
        self.space, self.size = space, size
        self.capacity = bench.node.pool.slabs.capacity_bytes
        self.named = bench.node.pool.spaces.named(space)
        self.ranges = bench.node.pool.slabs.ranges
        self.segments = list(bench.node.pool.slabs.segments.values())
        counters = sum(area.counters.astype(np.int64) for area in bench.memory.areas.values())
        assert isinstance(counters, np.ndarray)
        self.blocks: dict[int, list[Block]] = {segment.number: [] for segment in self.segments}
        self.stays: set[Block] = set()
        keep = set(excluded)
        for block in bench.node.pool.table.blocks.values():
            self.blocks[block.slot.slab.segment.number].append(block)
            if (
                block.state is not State.READY
                or block in bench.node.pool.pins.guaranteed
                or counters[block.number]
                or (block.space == space and block.key in keep)
            ):
                self.stays.add(block)

    def evictable_bytes(self) -> int:
        return sum(block.charge for blocks in self.blocks.values() for block in blocks if block not in self.stays)

    def could_serve(self) -> str:
        """The place that could; empty when there is none."""
        free = self.capacity - sum(segment.nbytes for segment in self.segments)
        vacant = list(self.ranges.free)
        for segment in self.segments:
            blocks = self.blocks[segment.number]
            if not any(block in self.stays for block in blocks):
                free += segment.nbytes
                if segment.base is not None:
                    vacant.append((segment.base, segment.nbytes))
            if segment.space != self.space or segment.small != (self.size <= SMALL_SLOT_BYTES):
                continue
            step = SMALL_SLAB_BYTES if segment.small else segment.nbytes
            for start in range(0, segment.nbytes, step):
                length = min(step, segment.nbytes - start)
                inside = [block for block in blocks if start <= block.slot.offset < start + length]
                stay = [block for block in inside if block in self.stays]
                if stay and stay[0].charge == self.size and len(stay) < length // self.size:
                    return f"a slot of the slab at {start} of segment {segment.number}"
                if not stay and segment.small and length >= self.size:
                    return f"the slab at {start} of segment {segment.number}"
        if self.named and longest(vacant) < self.size:
            return ""
        return f"{free} bytes of whole segments" if free >= self.size else ""


def longest(ranges: Sequence[tuple[int, int]]) -> int:
    """Bytes of the longest run of ranges (offset, bytes) that touch."""
    most = run = end = 0
    for offset, nbytes in sorted(ranges):
        run = run + nbytes if offset == end else nbytes
        end = offset + nbytes
        most = max(most, run)
    return most


class Traffic:
    """Random engines and pins on a small pool; with `named` bytes of it, half of the spaces are a gateway's."""

    def __init__(self, seed: int, capacity: int, segment: int, sizes: Sequence[int], named: int = 0) -> None:
        self.rng = random.Random(seed)
        self.sizes = sizes
        self.bench = Bench(capacity, segment_bytes=segment, max_blocks=8192, named_bytes=named)
        spaces = [make.space(f"model-{number}") for number in range(SPACES)]
        self.engines = [self.bench.attach(*spaces, pid=100 + number) for number in range(3)]
        self.homes = [(self.engines, at) for at in range(SPACES)]
        """Engines of each space, and its position in theirs."""
        if named:
            spaces = [replace(space, gateway=LMCACHE) for space in spaces]
            peers = [self.bench.attach(*spaces, pid=0, gateway=LMCACHE) for _ in range(2)]
            self.homes += [(peers, at) for at in range(SPACES)]
            self.engines = self.engines + peers
        self.chains: list[tuple[int, int, list[bytes]]] = []
        self.open: list[tuple[BenchEngine, int]] = []
        self.generation = 0
        self.refusals = 0
        self.granted = 0

    def step(self, number: int) -> None:
        rng = self.rng
        self.bench.now += 0.01
        draw = rng.random()
        if draw < 0.55 or not self.chains:
            self.store(number)
        elif draw < 0.70:
            space, _, chain = rng.choice(self.chains[-60:])
            engines, at = self.homes[space]
            rng.choice(engines).acquire(chain[: rng.randint(1, len(chain))], at)
        elif draw < 0.80:
            rng.choice(self.engines).release()
        elif draw < 0.88 and self.open:
            engine, reservation = self.open.pop(rng.randrange(len(self.open)))
            (engine.commit if rng.random() < 0.7 else engine.abort)(reservation)
        elif draw < 0.94:
            self.pin()
        else:
            self.bench.node.tick(self.bench.now)

    def store(self, number: int) -> None:
        rng = self.rng
        space = rng.randrange(len(self.homes))
        nbytes = rng.choice(self.sizes)
        if rng.random() < 0.2:
            space, nbytes, chain = rng.choice(self.chains) if self.chains else (space, nbytes, [])
            chain = [*chain, make.key(("longer", number))]
        else:
            most = max(1, min(24, self.bench.node.options.capacity_bytes // 4 // nbytes))
            chain = make.keys(rng.randint(1, most), ("chain", number))
        engines, at = self.homes[space]
        engine = rng.choice(engines)
        present = [key for key, there in zip(chain, engine.has(chain, at), strict=True) if there]
        granted = engine.reserve(chain, nbytes, space=at)
        self.granted += int((granted.outcomes == 0).sum())
        self.check(Stored(granted).refused, engine.spaces[at], slot_bytes(nbytes), present)
        if granted.reservation:
            if rng.random() < 0.8:
                engine.commit(granted.reservation)
            else:
                self.open.append((engine, granted.reservation))
        self.chains.append((space, nbytes, chain))

    def check(self, refused: set[Code], space: int, size: int, present: Sequence[bytes]) -> None:
        if not refused:
            return
        assert refused <= ROOM, refused
        self.refusals += 1
        oracle = Oracle(self.bench, space, size, present)
        could_serve = oracle.could_serve()
        assert could_serve == "", f"{size} bytes in space {space}: {could_serve}"
        fits = oracle.evictable_bytes() >= size
        assert refused == {Code.FRAGMENTED if fits else Code.POOL_FULL}, (refused, fits)

    def pin(self) -> None:
        """Pins of a few chains, which may want more than the budget."""
        self.generation += 1
        chosen = self.rng.sample(self.chains, min(len(self.chains), self.rng.randint(0, 4)))
        records = [
            make.pin(f"pin-{at}", chain[:: self.rng.randint(1, 3)], model=f"model-{space % SPACES}")
            for at, (space, _, chain) in enumerate(chosen)
        ]
        snapshot, bodies = make.pins(records, self.generation)
        assert self.bench.apply(snapshot, bodies) == []
