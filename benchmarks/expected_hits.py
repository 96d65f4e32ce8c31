"""Hit ratios that a simulation gave for two public traces: what the data plane is held against.

The simulation served requests one at a time, in file order: the hits of a request are its leading blocks that are
there; they are touched tail first, what is missing is stored, blocks of the running request stay. Traces differ
by their number of blocks of 512 tokens. S3-FIFO has a small queue of 30 %; the gate of admission closes at
240 s.
"""

PERCENTS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
CONVERSATION_BLOCKS = 182_790
SYNTHETIC_BLOCKS = 43_924

_EXPECTED: dict[int, dict[str, tuple[float, ...]]] = {
    CONVERSATION_BLOCKS: {
        "lru": (0.0525, 0.0793, 0.1958, 0.2789, 0.3453, 0.3604),
        "age_class": (0.0558, 0.0879, 0.2104, 0.2896, 0.3360, 0.3599),
        "s3fifo": (0.0763, 0.1171, 0.2022, 0.2762, 0.3248, 0.3596),
        "arc": (0.0653, 0.0888, 0.2102, 0.2840, 0.3203, 0.3596),
        "slru": (0.0582, 0.0834, 0.1269, 0.2070, 0.3109, 0.3591),
        "lfu": (0.0582, 0.0834, 0.1267, 0.1949, 0.3069, 0.3591),
        "fifo": (0.0513, 0.0767, 0.1753, 0.2481, 0.3133, 0.3475),
        "lru+admission": (0.1109, 0.1436, 0.2029, 0.2789, 0.3453, 0.3604),
    },
    SYNTHETIC_BLOCKS: {
        "lru": (0.0380, 0.0778, 0.1566, 0.2623, 0.3931, 0.5451),
        "age_class": (0.0395, 0.0788, 0.1609, 0.2473, 0.4022, 0.5660),
        "s3fifo": (0.0398, 0.0759, 0.1624, 0.2681, 0.4118, 0.5686),
        "arc": (0.0405, 0.0795, 0.1602, 0.2638, 0.4057, 0.5716),
        "lfu": (0.0340, 0.0463, 0.1186, 0.1869, 0.3282, 0.5615),
        "lru+admission": (0.0467, 0.0773, 0.1575, 0.2681, 0.3940, 0.5462),
    },
}


def expected_hit_ratio(unique_blocks: int, policy: str, percent: float) -> float | None:
    """What the simulation gave; None when it was not run for this trace, policy or size."""
    figures = _EXPECTED.get(unique_blocks, {}).get(policy)
    return figures[PERCENTS.index(percent)] if figures and percent in PERCENTS else None
