/** The last hour as columns: made by the API, continued with each overview. */

import type { History, Overview } from '../api/types';

export const HISTORY_S = 3_600;
/** A pause at least this long, and three times the usual step, is a hole: nothing was measured there. */
const HOLE_S = 15;

export const NO_HISTORY: History = {
  at: [],
  used_bytes: [],
  capacity_bytes: [],
  hit_ratio: [],
  bytes_in_per_s: [],
  bytes_out_per_s: [],
};

/** The history with the overview as its last point, without what is older than an hour. */
export function continued(history: History, overview: Overview): History {
  const last = history.at.at(-1);
  if (last !== undefined && overview.at <= last) return history;
  const first = history.at.findIndex((at) => at > overview.at - HISTORY_S);
  const from = first < 0 ? history.at.length : first;
  const add = <T>(column: T[], value: T): T[] => [...column.slice(from), value];
  return {
    at: add(history.at, overview.at),
    used_bytes: add(history.used_bytes, overview.pool.used_bytes),
    capacity_bytes: add(history.capacity_bytes, overview.pool.capacity_bytes),
    hit_ratio: add(history.hit_ratio, overview.rates.hit_ratio),
    bytes_in_per_s: add(history.bytes_in_per_s, overview.rates.bytes_in_per_s),
    bytes_out_per_s: add(history.bytes_out_per_s, overview.rates.bytes_out_per_s),
  };
}

export type Columns = [number[], ...(number | null)[][]];

/** Columns for a chart, with a null where nothing was measured, so that no line is drawn across a hole. */
export function withHoles(at: number[], ...columns: (number | null)[][]): Columns {
  const steps = at.slice(1).map((time, i) => time - (at[i] ?? time));
  const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 2)] ?? 0;
  const hole = Math.max(HOLE_S, usual * 3);
  const times: number[] = [];
  const values: (number | null)[][] = columns.map(() => []);
  const add = (time: number, valueOf: (column: (number | null)[]) => number | null): void => {
    times.push(time);
    columns.forEach((column, c) => values[c]?.push(valueOf(column)));
  };
  at.forEach((time, i) => {
    const before = at[i - 1];
    if (before !== undefined && time - before > hole) add((time + before) / 2, () => null);
    add(time, (column) => column[i] ?? null);
  });
  return [times, ...values];
}
