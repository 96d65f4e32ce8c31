/** Events as one line each, newest first. */

import type { EventList, LarderEvent } from '../../api/types';
import { bytes, duration, plural, whole } from '../../format';
import { matches } from '../frame/table';

export const MAX_EVENTS = 200;

export function eventKey(event: LarderEvent): string {
  return `${event.node}/${event.seq}/${event.at}`;
}

/** Events of the history, which have an id and no number in a stream. */
export function kept(list: EventList): LarderEvent[] {
  return list.items.map((event) => ({ ...event, seq: -event.id }));
}

const identity = (event: LarderEvent): string => `${event.name}/${event.node}/${event.at}`;

/** Both lists in one, each event once, newest first. Traffic and other events have a bound each: none displaces the other. */
export function merged(known: LarderEvent[], news: LarderEvent[], max = MAX_EVENTS): LarderEvent[] {
  const byKey = new Map(known.map((event) => [eventKey(event), event]));
  for (const event of news) byKey.set(eventKey(event), event);
  const all = [...byKey.values()].sort((a, b) => b.at - a.at || b.seq - a.seq);
  const live = new Set(all.filter((event) => event.seq >= 0).map(identity));
  const left = { true: max, false: max };
  return all.filter((event) => (event.seq >= 0 || !live.has(identity(event))) && left[`${isTraffic(event)}`]-- > 0);
}

export type EventTone = 'good' | 'warn' | 'bad' | 'plain';

const TONE: Record<string, EventTone> = {
  'node.joined': 'good',
  'node.lost': 'bad',
  'node.condition_started': 'bad',
  'node.condition_ended': 'good',
  'dataplane.started': 'good',
  'dataplane.stopped': 'warn',
  'dataplane.exited': 'bad',
  'node.drifted': 'warn',
  'node.clock_skewed': 'warn',
  'node.clock_corrected': 'good',
  'push.acked': 'good',
  'push.nacked': 'bad',
  'push.refused': 'bad',
  'node.started': 'good',
  'node.stopped': 'warn',
  'engine.attached': 'good',
  'engine.detached': 'warn',
  'engine.refused': 'bad',
  'engine.expelled': 'warn',
  'engine.killed': 'warn',
  'engine.readmitted': 'good',
  'blocks.refused': 'bad',
  'refusals.started': 'bad',
  'refusals.ended': 'good',
  'limit.exceeded': 'warn',
  'limit.restored': 'good',
  'lease.broken': 'warn',
  'reservation.aborted': 'warn',
  'reservation.expired': 'warn',
  'snapshot.applied': 'good',
  'snapshot.refused': 'bad',
  'pin.degraded': 'warn',
  'pin.emptied': 'warn',
  'cache.started_cold': 'warn',
  'block.corrupted': 'bad',
  'alert.fired': 'bad',
  'alert.resolved': 'good',
  'memory.adopted': 'good',
  'id_journal.nearly_filled': 'warn',
  'node.resize_refused': 'warn',
  'sweep.requested': 'warn',
  'push.timed_out': 'warn',
  'database.lost': 'bad',
  'database.recovered': 'good',
  'token.expired': 'warn',
  'token.revoked': 'warn',
  'backup.restored': 'warn',
  'apply_file.refused': 'bad',
  'pin.expired': 'warn',
  'gpu_copy_pool.created': 'good',
  'gpu_copy_pool.failed': 'warn',
  'gateway.name_lost': 'bad',
  'gateway.name_restored': 'good',
  'tier.lost': 'bad',
  'tier.recovered': 'good',
};

export function eventTone(event: LarderEvent): EventTone {
  if (event.name === 'engine.detached' && event.fields.reason === 'client detached') return 'plain';
  if (event.name === 'cache.started_cold' && event.fields.released === true) return 'plain';
  return TONE[event.name] ?? (event.name.startsWith('push.') ? 'warn' : 'plain');
}

/** Names of block traffic, which would fill the list on a busy node. The first refusal is `refusals.started`. */
export function isTraffic(event: LarderEvent): boolean {
  return ['blocks.stored', 'blocks.evicted', 'blocks.refused'].includes(event.name) || event.name.startsWith('segment.');
}

export interface EventFilter {
  words: string;
  node: string;
  traffic: boolean;
  /** Only warnings and problems. */
  trouble: boolean;
}

/** The events that pass the filter. */
export function chosen(events: readonly LarderEvent[], { words, node, traffic, trouble }: EventFilter): LarderEvent[] {
  return events.filter(
    (event) =>
      (traffic || !isTraffic(event)) &&
      (!node || event.node === node) &&
      (!trouble || ['bad', 'warn'].includes(eventTone(event))) &&
      (!words || matches(words, event.name, event.node, eventSentence(event))),
  );
}

type Fields = Record<string, unknown>;
const text = (fields: Fields, key: string): string => String(fields[key] ?? '?');
/** A name that may be empty, followed by a separator if it is not. */
const named = (fields: Fields, key: string): string => (String(fields[key] ?? '').trim() ? `${text(fields, key).trim()}, ` : '');
const number = (fields: Fields, key: string): number => Number(fields[key] ?? 0);
const blocks = (f: Fields): string => `${plural(number(f, 'blocks'), 'block')}, ${bytes(number(f, 'bytes'))}`;

const alerted = (f: Fields): string => [text(f, 'alertname'), f.tenant && `tenant ${text(f, 'tenant')}`].filter(Boolean).join(', ');

const SENTENCE: Record<string, (f: Fields) => string> = {
  'alert.fired': alerted,
  'alert.resolved': alerted,
  'node.started': (f) => `pid ${text(f, 'pid')}, pool of ${bytes(number(f, 'capacity_bytes'))}`,
  'node.joined': (f) => `pid ${text(f, 'pid')}, release ${text(f, 'release')}`,
  'node.drifted': (f) => `${text(f, 'type')} generation ${text(f, 'generation')} is pushed again`,
  'dataplane.started': (f) => `pid ${text(f, 'pid')}`,
  'dataplane.exited': (f) => {
    const code = number(f, 'code');
    const how = code < 0 ? `killed by signal ${-code}` : `exit code ${code}`;
    const pause = f.restart_in_s;
    if (typeof pause !== 'number') return how;
    return `${how}, started again ${pause > 0 ? `in ${duration(pause)}` : 'at once'}`;
  },
  'node.stopped': () => 'the node is shutting down cleanly',
  'engine.attached': (f) => `${named(f, 'engine')}pid ${text(f, 'pid')}, group ${text(f, 'group')}`,
  'engine.detached': (f) =>
    `pid ${text(f, 'pid')}, group ${text(f, 'group')}: ${text(f, 'reason')}` +
    (number(f, 'quarantined_blocks') ? `, ${plural(number(f, 'quarantined_blocks'), 'block')} quarantined` : ''),
  'engine.released': (f) =>
    `group ${text(f, 'group')}: ${plural(number(f, 'released_blocks'), 'block')} released, ${bytes(number(f, 'released_bytes'))}`,
  'engine.refused': (f) => `pid ${text(f, 'pid')}, uid ${text(f, 'uid')}: ${text(f, 'message')}`,
  'engine.expelled': (f) =>
    `pid ${text(f, 'pid')}, group ${text(f, 'group')}: its leases on ${plural(number(f, 'leased_blocks'), 'block')} no longer count`,
  'engine.killed': (f) => `pid ${text(f, 'pid')}, group ${text(f, 'group')}: an operator sent SIGKILL`,
  'engine.readmitted': (f) => `pid ${text(f, 'pid')}, group ${text(f, 'group')} may attach again`,
  'lease.broken': (f) => `client ${text(f, 'client')}: ${plural(number(f, 'blocks'), 'block')}, ${text(f, 'reason')}`,
  'refusals.ended': (f) => `${text(f, 'tenant')}: ${plural(number(f, 'blocks'), 'block')} refused before`,
  'limit.exceeded': (f) => `${text(f, 'tenant')}: ${bytes(number(f, 'held_bytes'))} of ${bytes(number(f, 'limit_bytes'))}`,
  'limit.restored': (f) => `${text(f, 'tenant')}: ${bytes(number(f, 'held_bytes'))}`,
  'blocks.stored': (f) => `${text(f, 'tenant')}: ${blocks(f)}`,
  'blocks.evicted': (f) => `${text(f, 'tenant')}: ${blocks(f)}, for ${text(f, 'reason')}`,
  'blocks.refused': (f) => `${text(f, 'tenant')}: ${blocks(f)}, ${text(f, 'reason')}`,
  'reservation.aborted': (f) => `${text(f, 'tenant')}: ${blocks(f)}`,
  'reservation.expired': (f) => `pid ${text(f, 'pid')}, group ${text(f, 'group')}: ${blocks(f)}`,
  'segment.created': (f) => `segment ${text(f, 'segment')}, ${bytes(number(f, 'bytes'))}`,
  'segment.retired': (f) => `segment ${text(f, 'segment')}, ${bytes(number(f, 'bytes'))}`,
  'snapshot.applied': (f) => `${text(f, 'type')} generation ${text(f, 'generation')}`,
  'snapshot.refused': (f) =>
    `${text(f, 'type')} generation ${text(f, 'generation')}: ${plural(number(f, 'faults'), 'fault')}`,
  'id_journal.nearly_filled': (f) =>
    `${bytes(number(f, 'bytes'))} of ${bytes(number(f, 'capacity_bytes'))}: further tenants are refused when it is full`,
  'pin.degraded': (f) => `${text(f, 'pin')}: ${plural(number(f, 'blocks'), 'block')} beyond the pin budget`,
  'pin.expired': (f) => text(f, 'pin'),
  'pin.emptied': (f) => {
    const lost = number(f, 'blocks');
    return `${text(f, 'pin')}: ${lost === 1 ? 'its only block is not' : `none of its ${whole(lost)} blocks is`} cached any more`;
  },
  'cache.started_cold': (f) => {
    const reason = f.reason ? `: ${text(f, 'reason')}` : '';
    if (f.released) return `the cache began empty${reason}`;
    return `${plural(number(f, 'lost_blocks'), 'block')}, ${bytes(number(f, 'lost_bytes'))} lost${reason}`;
  },
  'gpu_copy_pool.created': (f) => `${text(f, 'name')} ${text(f, 'device')} keeps GPU copies, up to ${bytes(number(f, 'capacity_bytes'))}`,
  'gpu_copy_pool.failed': (f) => `${text(f, 'device')}: ${text(f, 'reason')}`,
  'tier.lost': (f) => `${text(f, 'tier')}: ${text(f, 'reason')}`,
  'tier.recovered': (f) => `${text(f, 'tier')}: in service again`,
  'gateway.name_lost': (f) => `${text(f, 'gateway')}: ${text(f, 'reason')}`,
  'gateway.name_restored': (f) => `${text(f, 'gateway')}: new workers can map the memory again`,
  'block.corrupted': (f) => `${text(f, 'tenant')}: ${bytes(number(f, 'bytes'))} did not match their checksum and were dropped`,
  'memory.adopted': (f) => `${blocks(f)} of the process before, in ${duration(number(f, 'seconds'))}`,
  'sweep.ended': (f) => `${text(f, 'kind')} sweep ${text(f, 'sweep')}: ${plural(number(f, 'blocks'), 'block')}`,
  'admission.changed': (f) =>
    f.closed ? 'the gate closed: a block is admitted only if its key was seen before' : 'the gate opened: every block is admitted',
  'pool.resized': (f) => `the pool holds ${bytes(number(f, 'capacity_bytes'))}`,
  'node.resize_refused': (f) => `the pool did not grow to ${bytes(number(f, 'pool_bytes'))}: ${text(f, 'reason')}`,
  'sweep.requested': (f) => `${text(f, 'kind')} ${text(f, 'scope')}`,
  'verification.requested': (f) => text(f, 'scope'),
  'move.requested': (f) => f.compress === true ? `${text(f, 'scope')} in ${text(f, 'tier')}, encoded again` : `${text(f, 'scope')} to ${text(f, 'tier')}${f.release === true ? `, and removed from ${typeof f.source === 'string' ? f.source : 'memory'}` : ''}`,
  'move.ended': (f) =>
    `${plural(number(f, 'moved'), 'block')} to ${text(f, 'tier')}` +
    (number(f, 'released') ? `, ${whole(number(f, 'released'))} released` : '') +
    (number(f, 'refused') ? `, ${whole(number(f, 'refused'))} refused` : '') +
    (f.cancelled === true ? ', cancelled' : ''),
  'move.cancelled': (f) => `move ${whole(number(f, 'move'))} to ${text(f, 'tier')}`,
  'session.action_requested': (f) => `${text(f, 'action')} of ${text(f, 'session')} of ${text(f, 'tenant')}`,
  'node.resize_requested': (f) => `a pool of ${bytes(number(f, 'pool_bytes'))}`,
};

function pushSentence(f: Fields): string {
  const faults = Array.isArray(f.faults) ? f.faults.length : 0;
  return `${text(f, 'type')} generation ${text(f, 'generation')}` + (faults ? `: ${plural(faults, 'fault')}` : '');
}

/** Return who or what an event is about and who caused it; or its node, if it says no more. */
export function eventSentence(event: LarderEvent): string {
  const by = event.actor ? `by ${event.actor}` : '';
  return [sentence(event) || (by ? '' : event.node), by].filter(Boolean).join(', ');
}

/** An event that this page does not know yet is shown with its fields. */
function sentence(event: LarderEvent): string {
  const known = SENTENCE[event.name];
  if (known) return known(event.fields);
  if (event.name.startsWith('push.')) return pushSentence(event.fields);
  return Object.entries(event.fields)
    .filter(([key]) => key !== 'at')
    .map(([key, value]) => `${key} ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`)
    .join(', ');
}
