/** Usage as rows: one per step, or one per group over the whole period. */

import type { UsageReport, UsageCounts } from '../../api/types';
import { NONE, bytes, count, duration, percent } from '../../format';

export interface UsageRow {
  /** Begin of the step; null for a sum over all of them. */
  start: number | null;
  group: string;
  used: UsageCounts;
}

const SUMMED = [
  'byte_hours', 'requested_tokens', 'served_tokens', 'saved_prefill_s', 'unrated_tokens', 'stored_blocks', 'stored_bytes',
  'evicted_blocks', 'evicted_bytes', 'refused_blocks',
] as const satisfies (keyof UsageCounts)[];

/** One row per group, largest usage first. */
export function byGroup(report: UsageReport): UsageRow[] {
  const groups = new Map<string, UsageRow>();
  for (const item of report.items) {
    const row = groups.get(item.group);
    if (!row) groups.set(item.group, { start: null, group: item.group, used: { ...item } });
    else for (const name of SUMMED) row.used[name] += item[name];
  }
  return [...groups.values()].sort((a, b) => b.used.byte_hours - a.used.byte_hours || a.group.localeCompare(b.group));
}

/** The newest step first. */
export function byStep(report: UsageReport): UsageRow[] {
  return report.items
    .map((item) => ({ start: item.start, group: item.group, used: item }))
    .sort((a, b) => b.start - a.start || a.group.localeCompare(b.group));
}

export const USAGE_COLUMNS: { label: string; title: string; by: (used: UsageCounts) => number | null; value: (used: UsageCounts) => string }[] = [
  { label: 'Held', title: 'Bytes held, times hours', by: (u) => u.byte_hours, value: (u) => `${bytes(u.byte_hours)} h` },
  { label: 'Tokens asked', title: 'Tokens of look-ups, counted once per request', by: (u) => u.requested_tokens, value: (u) => count(u.requested_tokens) },
  { label: 'Served', title: 'Tokens that engines read from the cache', by: (u) => u.served_tokens, value: (u) => count(u.served_tokens) },
  {
    label: 'Share',
    title: 'Served of asked. Above 100 % if engines acquired the blocks of one look-up several times',
    by: (u) => (u.requested_tokens ? u.served_tokens / u.requested_tokens : null),
    value: (u) => percent(u.requested_tokens ? u.served_tokens / u.requested_tokens : null),
  },
  {
    label: 'Prefill saved',
    title: 'Estimate, by the rates that are set (larder rates)',
    by: (u) => u.saved_prefill_s,
    value: (u) => (u.saved_prefill_s ? duration(u.saved_prefill_s) : u.served_tokens && u.unrated_tokens ? 'no rate' : NONE),
  },
  { label: 'Stored', title: 'Bytes', by: (u) => u.stored_bytes, value: (u) => bytes(u.stored_bytes) },
  { label: 'Evicted', title: 'Bytes', by: (u) => u.evicted_bytes, value: (u) => bytes(u.evicted_bytes) },
  { label: 'Refused', title: 'Blocks', by: (u) => u.refused_blocks, value: (u) => count(u.refused_blocks) },
];
