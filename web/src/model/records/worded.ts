/** Values of records in words, by the name of their field. */

import { NONE, bytes, dateTime, duration, exactSize, whole } from '../../format';

const SHARE = ['floor_bytes', 'limit_bytes'] as const;

/** A value of a record in words. */
export function worded(field: string, value: unknown): string {
  if (value === null || value === undefined || value === '') return NONE;
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value === 'number') {
    if (/bytes/.test(field)) return sized(value);
    if (field === 'expires_at') return dateTime(value);
    if (/_per_s$/.test(field)) return whole(value);
    return /_s$/.test(field) ? duration(value) : String(value);
  }
  if (typeof value !== 'object') return String(value);
  const entries = Object.entries(value);
  if (entries.length === 0) return NONE;
  if (field === 'selector') return entries.map(([key, label]) => `${key}=${String(label)}`).join(', ');
  if (field === 'tiers') {
    return entries.map(([tier, share]) => {
      const parts = SHARE.map((name) => (share as Record<string, unknown>)[name]);
      return `${tier}: floor ${worded('floor_bytes', parts[0] ?? 0)}, limit ${worded('limit_bytes', parts[1])}`;
    }).join('; ');
  }
  return JSON.stringify(value);
}

/** `4 GiB`; all digits if that would be rounded, because a change is compared by it. */
function sized(value: number): string {
  const exact = exactSize(value);
  return /\d$/.test(exact) && value >= 1024 ? `${value} B (${bytes(value)})` : exact.replace(/\d+/, '$& ').replace(/ $/, ' B');
}
