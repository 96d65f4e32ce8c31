"""A made-up trace in the Mooncake format: sessions that grow, behind a few shared prefixes."""

import json
from pathlib import Path
from random import Random


def make_trace(requests: int, seed: int = 1, *, start_id: int = 0) -> list[list[int]]:
    """Block ids of each request. An id is always preceded by the same ids, as in the real traces."""
    random = Random(seed)
    fresh = iter(range(start_id, 1 << 62))
    prefixes = [[next(fresh) for _ in range(length)] for length in (1, 3, 8)]
    sessions: list[list[int]] = []
    trace = []
    for _ in range(requests):
        if not sessions or random.random() < 0.35:
            session = list(random.choice(prefixes))
            sessions.append(session)
        else:
            session = sessions[-1 - min(int(random.expovariate(0.15)), len(sessions) - 1)]
        session.extend(next(fresh) for _ in range(random.randint(0 if len(session) > 8 else 1, 6)))
        trace.append(list(session))
    return trace


def write_trace(path: Path, trace: list[list[int]], *, every_ms: int = 10) -> Path:
    """The trace as a file, 512 tokens a block."""
    lines = (
        json.dumps(
            {"timestamp": number * every_ms, "input_length": 512 * len(ids), "output_length": 7, "hash_ids": ids}
        )
        for number, ids in enumerate(trace)
    )
    path.write_text("\n".join(lines) + "\n")
    return path
