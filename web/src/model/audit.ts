/** Readable description of the changes of an audit entry. */

import type { AuditEntry } from '../api/types';
import { bytes } from '../format';

export interface Changed {
  field: string;
  before: string;
  after: string;
}

/** The exact value; for sizes also a readable one. */
function said(field: string, value: unknown): string {
  if (value === undefined) return '';
  if (field.endsWith('_bytes') && typeof value === 'number' && value >= 1024) return `${value} (${bytes(value)})`;
  return typeof value === 'string' ? value : JSON.stringify(value);
}

/** Fields that differ, by name. A value that is not an object has no fields. */
export function changes({ before, after }: Pick<AuditEntry, 'before' | 'after'>): Changed[] {
  const [was, is]: Record<string, unknown>[] = [before ?? {}, after ?? {}];
  return [...new Set([...Object.keys(was ?? {}), ...Object.keys(is ?? {})])]
    .map((field) => ({ field, before: said(field, was?.[field]), after: said(field, is?.[field]) }))
    .filter((change) => change.before !== change.after);
}
