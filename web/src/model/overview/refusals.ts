/**
 * How many blocks were refused in the last minute: the growth of counters, which only grow while a node lives; and for
 * the time before the page was opened, the refusals among the recent events.
 */

import type { Overview } from '../../api/types';

const WINDOW_S = 60;

interface Sample {
  at: number;
  refused: Record<string, number>;
}

export class RefusalWindow {
  #samples: Sample[] = [];
  #earlier: { at: number; code: string; blocks: number }[] = [];

  /** The overview as it is at `now`, the server's time. */
  add(overview: Overview, now: number): void {
    const last = this.#samples.at(-1);
    if (!last) this.#earlier = recentRefusals(overview);
    const fell = last && Object.entries(last.refused).some(([code, n]) => (overview.refused[code] ?? 0) < n);
    // A node restarted or left, so the difference of counters is meaningless.
    if (fell) this.#samples = [];
    this.#samples.push({ at: now, refused: overview.refused });
    while ((this.#samples[1]?.at ?? Infinity) <= now - WINDOW_S) this.#samples.shift();
    this.#earlier = this.#earlier.filter((refusal) => refusal.at > now - WINDOW_S);
  }

  /** Whether the whole window was observed. */
  get covered(): boolean {
    return (this.#samples.at(-1)?.at ?? 0) - (this.#samples[0]?.at ?? 0) >= WINDOW_S;
  }

  /** Codes with refusals inside the window only. */
  lastMinute(): Record<string, number> {
    const first = this.#samples[0];
    const last = this.#samples.at(-1);
    const sums: Record<string, number> = {};
    const add = (code: string, blocks: number): void => {
      if (blocks > 0) sums[code] = (sums[code] ?? 0) + blocks;
    };
    for (const { code, blocks } of this.#earlier) add(code, blocks);
    for (const [code, n] of Object.entries(last?.refused ?? {})) add(code, n - (first?.refused[code] ?? 0));
    return sums;
  }
}

function recentRefusals(overview: Overview): { at: number; code: string; blocks: number }[] {
  return overview.recent
    .filter((event) => event.name === 'blocks.refused')
    .map((event) => ({ at: event.at, code: String(event.fields.reason), blocks: Number(event.fields.blocks) || 0 }));
}

/** Explanation of each code. The full list is in the documentation of errors. */
const MEANING: Record<string, string> = {
  too_large: 'The block can never fit in the pool.',
  over_limit: "The tenant's limit leaves no room and none of its own blocks can be evicted.",
  pool_full: 'Every block that could make room is leased, pinned, being written or quarantined.',
  fragmented: 'There are evictable bytes, but every slab of this size holds a leased block.',
  index_full: 'Both index buckets of the key are full of blocks that cannot be evicted.',
  no_descriptor: 'Every block descriptor is in use by blocks that cannot be evicted.',
  out_of_memory: 'The machine refused memory for a new segment.',
  too_many_reservations: 'The engine holds its maximum number of open reservations.',
  reservation_expired: "The reservation's deadline passed; nothing was published.",
  rate_limited: 'The tenant stores faster than its quota allows.',
  not_admitted: 'Under pressure, a block is admitted when its key was seen before.',
  invalidated: 'An operator invalidated these blocks while they were being written.',
  bad_size: "A block's size does not fit its space.",
  space_conflict: 'The same space is attached with another block size: an engine is configured wrongly.',
};

export function meaning(code: string): string {
  return MEANING[code.toLowerCase()] ?? '';
}
