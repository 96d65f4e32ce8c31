/** What the charts show, over which times. */

import { bytes, bytesPerSecond, count, percent, rate } from '../../format';

export interface Line {
  /** Name of the series. */
  name: string;
  label: string;
  stroke: '--chart-1' | '--chart-2' | '--chart-limit';
  filled?: boolean;
  dashed?: boolean;
}

export interface ChartSpec {
  title: string;
  lines: readonly Line[];
  format: (value: number) => string;
  /** Labels of the y axis, if they are shorter. */
  axis?: (value: number) => string;
  /** The top of the y axis; without it, the largest value. */
  top?: number;
  binary?: boolean;
}

export const RANGES = { '5m': 300, '1h': 3_600, '1d': 86_400, '30d': 30 * 86_400 } as const;
export type Range = keyof typeof RANGES;
export const RANGE_LABELS: Record<Range, string> = { '5m': '5 min', '1h': '1 h', '1d': '1 day', '30d': '30 days' };

/** Values this much younger than a range let it be the shortest one that holds them all; the gap keeps it from flickering. */
const YOUNG_S = 60;

/** The range of an address; without one, 5 minutes while nothing is older, then an hour. `shown`: the range of the values. */
export function rangeOf(text: string, shown: Range = '1h', at: readonly number[] = [], columns: readonly (readonly (number | null)[])[] = []): Range {
  if (text in RANGES) return text as Range;
  const first = at.findIndex((_, i) => columns.some((values) => values[i] != null));
  if (first < 0) return '1h';
  const ageS = at.at(-1)! - at[first]!;
  return ageS < RANGES['5m'] - YOUNG_S || (shown === '5m' && first > 1) ? '5m' : '1h';
}

const perSecond = (unit: string) => (value: number) => `${rate(value)} ${unit}/s`;

const HITS: ChartSpec = { title: 'Hit ratio', format: percent, top: 1, lines: [{ name: 'hit_ratio', label: 'Hit ratio', stroke: '--chart-1', filled: true }] };
const TOKENS: ChartSpec = { title: 'Served from the cache', format: perSecond('tokens'), axis: rate, lines: [{ name: 'hit_tokens_per_s', label: 'Tokens', stroke: '--chart-1', filled: true }] };
const TRAFFIC: ChartSpec = {
  title: 'Bytes out and in',
  format: bytesPerSecond,
  binary: true,
  lines: [
    { name: 'read_bytes_per_s', label: 'Out', stroke: '--chart-1', filled: true },
    { name: 'stored_bytes_per_s', label: 'In', stroke: '--chart-2' },
  ],
};
const GONE: ChartSpec = {
  title: 'Evicted and refused',
  format: perSecond('blocks'),
  axis: rate,
  lines: [
    { name: 'evicted_blocks_per_s', label: 'Evicted', stroke: '--chart-1', filled: true },
    { name: 'refused_blocks_per_s', label: 'Refused', stroke: '--chart-2' },
  ],
};
const POOL: ChartSpec = {
  title: 'Pool',
  format: bytes,
  binary: true,
  lines: [
    { name: 'used_bytes', label: 'Used', stroke: '--chart-1', filled: true },
    { name: 'pinned_bytes', label: 'Pinned', stroke: '--chart-2' },
    { name: 'capacity_bytes', label: 'Capacity', stroke: '--chart-limit', dashed: true },
  ],
};
const TIERS: ChartSpec = {
  title: 'Tiers',
  format: bytes,
  binary: true,
  lines: [
    { name: 'tier_used_bytes', label: 'Used', stroke: '--chart-1', filled: true },
    { name: 'tier_budget_bytes', label: 'Budget', stroke: '--chart-limit', dashed: true },
  ],
};
const HELD: ChartSpec = {
  title: 'Held',
  format: bytes,
  binary: true,
  lines: [
    { name: 'used_bytes', label: 'Used', stroke: '--chart-1', filled: true },
    { name: 'pinned_bytes', label: 'Pinned', stroke: '--chart-2' },
    { name: 'limit_bytes', label: 'Limit on one node', stroke: '--chart-limit', dashed: true },
  ],
};
const STORED: ChartSpec = { title: 'Stored', format: perSecond('blocks'), axis: rate, lines: [{ name: 'stored_blocks_per_s', label: 'Stored', stroke: '--chart-1', filled: true }] };
const OUT: ChartSpec = { title: 'Bytes out', format: bytesPerSecond, binary: true, lines: [{ name: 'read_bytes_per_s', label: 'Out', stroke: '--chart-1', filled: true }] };
const ENGINES: ChartSpec = {
  title: 'Engines and leases',
  format: count,
  lines: [
    { name: 'engines', label: 'Engines', stroke: '--chart-1' },
    { name: 'leased_blocks', label: 'Leased blocks', stroke: '--chart-2' },
  ],
};
const PROCESS: ChartSpec = { title: 'CPU of the data plane', format: (value) => `${value.toFixed(2)} cores`, axis: (value) => value.toFixed(2), lines: [{ name: 'cpu_cores', label: 'CPU', stroke: '--chart-1', filled: true }] };

export const OF_FLEET: readonly ChartSpec[] = [HITS, TOKENS, TRAFFIC, GONE, POOL, TIERS];
export const OF_NODE: readonly ChartSpec[] = [HITS, TRAFFIC, GONE, POOL, TIERS, ENGINES, PROCESS];
export const OF_TENANT: readonly ChartSpec[] = [HITS, TOKENS, HELD, GONE, STORED, OUT];
/** Of users who are limited to tenants: sums of their tenants. */
export const OF_TENANTS: readonly ChartSpec[] = [HITS, TOKENS, GONE, STORED];

type Value = number | null | undefined;

/** The column with short pauses bridged: undefined joins a line, null breaks it. */
export function bridged(at: readonly number[], values: readonly (number | null)[], longestS: number): Value[] {
  const out: Value[] = [...values];
  let last = -1;
  values.forEach((value, i) => {
    if (value === null) return;
    const short = last >= 0 && (at[i] ?? 0) - (at[last] ?? 0) <= longestS;
    if (short) out.fill(undefined, last + 1, i);
    last = i;
  });
  return out;
}
