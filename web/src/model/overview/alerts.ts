/** Display of alerts. Their texts and links are untrusted. */

import type { Change } from '../../api/types';
import type { Level } from './findings';

export function severityTone(severity: string): Level {
  const word = severity.toLowerCase();
  if (['critical', 'error', 'page', 'high', 'emergency'].includes(word)) return 'bad';
  return ['info', 'none', 'low'].includes(word) ? 'note' : 'warn';
}

/** Return an http or https URL unchanged, and '' otherwise: other schemes could run a script. */
export function webUrl(text: string): string {
  return /^https?:\/\//i.test(text) ? text : '';
}

/** Return a link to the audit page with filters that select the entry of a change. */
export function auditLink(change: Change): string {
  return `#/changes?${new URLSearchParams({ kind: change.kind, name: change.name, entry: String(change.audit_id) })}`;
}
