/** The last hour as columns: made by the API, continued with each overview. */

import type { History, Overview } from '../api/types';

export const HISTORY_S = 3_600;
/** Seconds. A pause of at least this length and three times the usual step is a gap without measurements. */
const HOLE_S = 15;

export const NO_HISTORY: History = {
  at: [],
  used_bytes: [],
  capacity_bytes: [],
  hit_ratio: [],
  stored_bytes_per_s: [],
  read_bytes_per_s: [],
};

/** Spans of charts in seconds; a short history needs less than an hour. */
const SPANS_S = [300, 900, 1_800, HISTORY_S];

/** The shortest span that holds every point, up to the hour. */
export function spanS(at: number[], now: number): number {
  const reach = now - (at[0] ?? now);
  return SPANS_S.find((span) => span >= reach) ?? HISTORY_S;
}

/** `hour`, `15 min`. */
export function spanName(span: number): string {
  return span === HISTORY_S ? 'hour' : `${span / 60} min`;
}

/** Median step between points of the history; appended points keep to it. */
function usualStepS(at: number[]): number {
  const steps = at.slice(1).map((time, i) => time - (at[i] ?? time));
  return [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)] ?? 0;
}

/**
 * The history with the overview, as it is at `now`, for its last point, without what is older than an hour; null when
 * the step since the last point is not over yet. `before` is the overview at the last point: a step's hit ratio is
 * between the two.
 */
export function continued(history: History, before: Overview | null, overview: Overview, now: number): History | null {
  const last = history.at.at(-1);
  if (last !== undefined && now - last < Math.max(1, usualStepS(history.at)) * 0.9) return null;
  const first = history.at.findIndex((at) => at > now - HISTORY_S);
  const from = first < 0 ? history.at.length : first;
  const add = <T>(column: T[], value: T): T[] => [...column.slice(from), value];
  return {
    at: add(history.at, now),
    used_bytes: add(history.used_bytes, overview.pool.used_bytes),
    capacity_bytes: add(history.capacity_bytes, overview.pool.capacity_bytes),
    hit_ratio: add(history.hit_ratio, stepHitRatio(before, overview)),
    stored_bytes_per_s: add(history.stored_bytes_per_s, overview.rates.stored_bytes_per_s),
    read_bytes_per_s: add(history.read_bytes_per_s, overview.rates.read_bytes_per_s),
  };
}

function stepHitRatio(before: Overview | null, overview: Overview): number | null {
  if (!before) return null;
  const requested = overview.totals.requested_blocks - before.totals.requested_blocks;
  const hit = overview.totals.hit_blocks - before.totals.hit_blocks;
  // Counters fall when nodes leave.
  return requested > 0 && hit >= 0 ? Math.min(1, hit / requested) : null;
}

/** The column with short pauses bridged: undefined joins a line, null breaks it. */
export function bridged(at: number[], values: (number | null)[], longestS: number): (number | null | undefined)[] {
  const out: (number | null | undefined)[] = [...values];
  let last = -1;
  values.forEach((value, i) => {
    if (value === null) return;
    const short = last >= 0 && (at[i] ?? 0) - (at[last] ?? 0) <= longestS;
    if (short) out.fill(undefined, last + 1, i);
    last = i;
  });
  return out;
}

type Value = number | null | undefined;
export type Columns = [number[], ...Value[][]];

/** Columns for a chart, with a null where nothing was measured, so that no line is drawn across a hole. */
export function withHoles(at: number[], ...columns: Value[][]): Columns {
  const hole = Math.max(HOLE_S, usualStepS(at) * 3);
  const times: number[] = [];
  const values: Value[][] = columns.map(() => []);
  const add = (time: number, valueOf: (column: Value[]) => Value): void => {
    times.push(time);
    columns.forEach((column, c) => values[c]?.push(valueOf(column)));
  };
  at.forEach((time, i) => {
    const before = at[i - 1];
    if (before !== undefined && time - before > hole) add((time + before) / 2, () => null);
    add(time, (column) => column[i]);
  });
  return [times, ...values];
}
