/** Changes, pushes and alerts as one timeline, newest first. */

import type { Alert, Annotation, AuditEntry, Push } from '../../api/types';
import { named } from '../../format';
import { changes, type Changed } from './audit';
import type { RecordType } from '../records/fields';
import { worded } from '../records/worded';
import type { Level } from '../overview/findings';

export interface Moment {
  key: string;
  at: number;
  kind: 'change' | 'denied' | 'alert';
  tone: Level;
  title: string;
  actor: string;
  /** Why it was denied, or what the alert says. */
  about: string;
  changed: Changed[];
  /** Record that was changed, and its state before; null: there was none. */
  record?: { type: RecordType; name: string; before: Record<string, unknown> | null; deleted: boolean };
  /** Result on each node: the pushes of the generation that the change made. */
  pushes: Push[];
  details: [string, string][];
}

const TYPES: Record<string, RecordType> = { quota: 'quotas', pin: 'pins', policy: 'policies', tier: 'tiers', ceiling: 'ceilings', rate: 'rates', tokenizer: 'tokenizers' };

function about(action: string, kind: string, name: string): string {
  return [action, kind, name && named(name)].filter(Boolean).join(' ');
}

function pushesOf(pushes: readonly Push[], type: string, generation: number): Push[] {
  if (!generation) return [];
  const newest = new Map<string, Push>();
  // A snapshot has all records: a later generation of the type includes this change.
  for (const push of pushes) {
    if (push.type !== type || push.generation < generation) continue;
    const known = newest.get(push.node);
    if (!known || push.generation < known.generation || (push.generation === known.generation && push.id > known.id)) newest.set(push.node, push);
  }
  return [...newest.values()].sort((a, b) => a.node.localeCompare(b.node));
}

export function ofAudit(entry: AuditEntry, pushes: readonly Push[]): Moment {
  const type = TYPES[entry.kind];
  const allowed = entry.decision === 'allowed';
  return {
    key: `audit/${entry.id}`,
    at: entry.at ?? 0,
    kind: entry.decision === 'denied' ? 'denied' : 'change',
    tone: allowed ? 'note' : entry.decision === 'denied' ? 'bad' : 'warn',
    title: entry.decision === 'unreadable' ? `unreadable audit entry ${entry.id}` : about(entry.action, entry.kind, entry.name),
    actor: entry.actor,
    about: entry.decision === 'unreadable' ? 'This entry was changed in the database.' : entry.reason,
    changed: changes(entry),
    ...(type && allowed ? { record: { type, name: entry.name, before: (entry.before as Record<string, unknown> | null) ?? null, deleted: entry.action === 'delete' } } : {}),
    pushes: pushesOf(pushes, entry.type, entry.generation),
    details: [
      ['audit entry', String(entry.id)],
      ['from', entry.source],
      ['request', entry.request_id],
      ['trace', entry.trace_id],
    ],
  };
}

/** For users who may not read the audit log. */
export function ofAnnotation({ change, title, time }: Annotation, pushes: readonly Push[]): Moment {
  if (!change) {
    return { key: `note/${time}/${title}`, at: time / 1000, kind: 'change', tone: 'note', title, actor: '', about: '', changed: [], pushes: [], details: [] };
  }
  return {
    key: `change/${change.at}/${change.kind}/${change.name}`,
    at: change.at,
    kind: 'change',
    tone: 'note',
    title: about(change.action, change.kind, change.name),
    actor: change.actor,
    about: '',
    changed: change.fields.map((field) => ({ field: field.name, before: wordedOrNone(field.name, field.before), after: wordedOrNone(field.name, field.after) })),
    pushes: pushesOf(pushes, change.type, change.generation),
    details: [],
  };
}

const wordedOrNone = (field: string, value: unknown) => (value === null || value === undefined ? '' : worded(field, value));

/** An alert begins, and ends if it has ended. */
export function ofAlert(alert: Alert): Moment[] {
  const base = { kind: 'alert' as const, actor: '', changed: [], pushes: [], details: [] };
  const what = [alert.alertname, alert.tenant && `tenant ${named(alert.tenant)}`, alert.node && `node ${alert.node}`].filter(Boolean).join(', ');
  return [
    { ...base, key: `fired/${alert.fingerprint}/${alert.starts_at}`, at: alert.starts_at, tone: alert.severity === 'critical' ? 'bad' : 'warn', title: `Alert ${what} fired`, about: alert.summary },
    ...(alert.ended_at === null ? [] : [{ ...base, key: `ended/${alert.fingerprint}/${alert.ended_at}`, at: alert.ended_at, tone: 'good' as const, title: `Alert ${what} ended`, about: '' }]),
  ];
}

export function timeline(...lists: Moment[][]): Moment[] {
  return lists.flat().sort((a, b) => b.at - a.at);
}

interface KnownPins {
  exists: (name: string) => boolean;
  /** Whether its keys are kept since its deletion. */
  kept: (name: string) => boolean;
}

/** Whether the earlier state can be put back: keys of pins and files of tokenizers are not in the audit log. */
export function restorable({ record }: Moment, pins: KnownPins): boolean {
  if (!record || record.type === 'tokenizers' || record.before === null) return false;
  return record.type !== 'pins' || pins.exists(record.name) || (record.deleted && pins.kept(record.name));
}
