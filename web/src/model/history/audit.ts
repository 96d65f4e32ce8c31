/** Readable description of the changes of an audit entry. */

import type { AuditEntry, AuditList } from '../../api/types';
import { NONE } from '../../format';
import { worded } from '../records/worded';

export interface Changed {
  field: string;
  before: string;
  after: string;
}

/** The value in words; empty if there is none. */
function shown(field: string, value: unknown): string {
  const words = worded(field, value);
  return words === NONE ? '' : words;
}

/** Fields that differ, by name. A value that is not an object has no fields. */
export function changes({ before, after }: Pick<AuditEntry, 'before' | 'after'>): Changed[] {
  const [was, is]: Record<string, unknown>[] = [before ?? {}, after ?? {}];
  return [...new Set([...Object.keys(was ?? {}), ...Object.keys(is ?? {})])]
    .map((field) => ({ field, before: shown(field, was?.[field]), after: shown(field, is?.[field]) }))
    .filter((change) => change.before !== change.after);
}

/** The newest entries on top of those that were read before, if both meet: entries have numbers, the newest the largest. */
export function continued(newest: AuditList, known: AuditList | null): AuditList {
  const last = newest.items.at(-1);
  if (!known || !last || !known.items.some(({ id }) => id >= last.id)) return newest;
  return { ...newest, items: [...newest.items, ...known.items.filter(({ id }) => id < last.id)], next_cursor: known.next_cursor };
}
