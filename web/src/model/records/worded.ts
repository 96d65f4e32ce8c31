/** Values of records in words, by the name of their field. */

import { NONE, bytes, dateTime, duration, exactSize } from '../../format';

const SHARE = ['floor_bytes', 'limit_bytes'] as const;

const DIGITS = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 20 });

/** A value of a record in words. They differ if values do, because changes are shown by them; times are worded to the second. */
export function worded(field: string, value: unknown): string {
  if (value === null || value === undefined || value === '') return NONE;
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value === 'number') {
    if (/bytes/.test(field)) return sized(value);
    if (field === 'expires_at') return dateTime(value);
    if (/_per_s$/.test(field)) return DIGITS.format(value);
    return /_s$/.test(field) ? lasting(value) : String(value);
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

/** `4 GiB`; all digits if that would be rounded. */
function sized(value: number): string {
  const exact = exactSize(value);
  return /\d$/.test(exact) && value >= 1024 ? `${value} B (${bytes(value)})` : exact.replace(/\d+/, '$& ').replace(/ $/, ' B');
}

/** `1 h`; all digits if that would be rounded: `90,030 s (1 d 1 h)`. */
function lasting(seconds: number): string {
  const unit = seconds < 3_600 ? 1 : seconds < 86_400 ? 60 : 3_600;
  if (seconds % unit === 0) return duration(seconds);
  return `${DIGITS.format(seconds)} s${seconds < 60 ? '' : ` (${duration(seconds)})`}`;
}
