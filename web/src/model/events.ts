/** Events as one line each, newest first. */

import type { LarderEvent } from '../api/types';
import { bytes, duration, plural, whole } from '../format';

export const MAX_EVENTS = 200;

export function eventKey(event: LarderEvent): string {
  return `${event.node}/${event.seq}/${event.at}`;
}

/** Both lists in one, each event once, newest first. */
export function merged(known: LarderEvent[], news: LarderEvent[]): LarderEvent[] {
  const byKey = new Map(known.map((event) => [eventKey(event), event]));
  for (const event of news) byKey.set(eventKey(event), event);
  return [...byKey.values()].sort((a, b) => b.at - a.at || b.seq - a.seq).slice(0, MAX_EVENTS);
}

export type EventTone = 'good' | 'warn' | 'bad' | 'plain';

const TONE: Record<string, EventTone> = {
  'node.joined': 'good',
  'node.lost': 'bad',
  'dataplane.started': 'good',
  'dataplane.exited': 'bad',
  'node.drifted': 'warn',
  'node.clock_off': 'warn',
  'node.clock_right': 'good',
  'push.acked': 'good',
  'push.nacked': 'bad',
  'push.refused': 'bad',
  'node.started': 'good',
  'node.stopping': 'warn',
  'engine.attached': 'good',
  'engine.detached': 'warn',
  'engine.refused': 'bad',
  'engine.expelled': 'warn',
  'engine.killed': 'warn',
  'engine.readmitted': 'good',
  'blocks.refused': 'bad',
  'reservation.aborted': 'warn',
  'reservation.expired': 'warn',
  'snapshot.applied': 'good',
  'snapshot.refused': 'bad',
  'pin.degraded': 'warn',
  'pin.emptied': 'warn',
  'cache.cold': 'warn',
  'block.corrupt': 'bad',
  'memory.adopted': 'good',
  'id_journal.filling': 'warn',
  'node.not_resized': 'warn',
  'blocks.invalidate': 'warn',
  'pin.expired': 'warn',
  'gpu_copy_pool.made': 'good',
  'gpu_copy_pool.failed': 'warn',
  'gateway.name_lost': 'bad',
  'gateway.name_restored': 'good',
};

export function eventTone(event: LarderEvent): EventTone {
  if (event.name === 'engine.detached' && event.fields.reason === 'goodbye') return 'plain';
  if (event.name === 'cache.cold' && event.fields.released === true) return 'plain';
  return TONE[event.name] ?? (event.name.startsWith('push.') ? 'warn' : 'plain');
}

/** The traffic of blocks: what fills the list on a busy node and is rarely what one looks for. */
export function isTraffic(event: LarderEvent): boolean {
  return event.name === 'blocks.stored' || event.name === 'blocks.evicted' || event.name.startsWith('segment.');
}

type Fields = Record<string, unknown>;
const text = (fields: Fields, key: string): string => String(fields[key] ?? '?');
/** A name that may be empty, before what follows it. */
const named = (fields: Fields, key: string): string => (String(fields[key] ?? '').trim() ? `${text(fields, key).trim()}, ` : '');
const number = (fields: Fields, key: string): number => Number(fields[key] ?? 0);
const blocks = (f: Fields): string => `${plural(number(f, 'blocks'), 'block')}, ${bytes(number(f, 'bytes'))}`;

const SENTENCE: Record<string, (f: Fields) => string> = {
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
  'node.stopping': () => 'the node is going down in good order',
  'engine.attached': (f) => `${named(f, 'engine')}pid ${text(f, 'pid')}, group ${text(f, 'group')}`,
  'engine.detached': (f) =>
    `pid ${text(f, 'pid')}, group ${text(f, 'group')}: ${text(f, 'reason')}` +
    (number(f, 'quarantined_blocks') ? `, ${plural(number(f, 'quarantined_blocks'), 'block')} quarantined` : ''),
  'engine.gone': (f) =>
    `group ${text(f, 'group')}: ${plural(number(f, 'released_blocks'), 'block')} released, ${bytes(number(f, 'released_bytes'))}`,
  'engine.refused': (f) => `pid ${text(f, 'pid')}, uid ${text(f, 'uid')}: ${text(f, 'message')}`,
  'engine.expelled': (f) =>
    `pid ${text(f, 'pid')}, group ${text(f, 'group')}: its leases on ${plural(number(f, 'leased_blocks'), 'block')} no longer count`,
  'engine.killed': (f) => `pid ${text(f, 'pid')}, group ${text(f, 'group')}: an operator sent SIGKILL`,
  'engine.readmitted': (f) => `pid ${text(f, 'pid')}, group ${text(f, 'group')} may attach again`,
  'blocks.stored': (f) => `${text(f, 'tenant')}: ${blocks(f)}`,
  'blocks.evicted': (f) => `${text(f, 'tenant')}: ${blocks(f)}, for ${text(f, 'reason')}`,
  'blocks.refused': (f) => `${text(f, 'tenant')}: ${blocks(f)}, ${text(f, 'code')}`,
  'reservation.aborted': (f) => `${text(f, 'tenant')}: ${blocks(f)}`,
  'reservation.expired': (f) => `pid ${text(f, 'pid')}, group ${text(f, 'group')}: ${blocks(f)}`,
  'segment.created': (f) => `segment ${text(f, 'segment')}, ${bytes(number(f, 'bytes'))}`,
  'segment.retired': (f) => `segment ${text(f, 'segment')}, ${bytes(number(f, 'bytes'))}`,
  'snapshot.applied': (f) => `${text(f, 'type')} generation ${text(f, 'generation')}`,
  'snapshot.refused': (f) =>
    `${text(f, 'type')} generation ${text(f, 'generation')}: ${plural(number(f, 'faults'), 'fault')}`,
  'id_journal.filling': (f) =>
    `${bytes(number(f, 'bytes'))} of ${bytes(number(f, 'capacity_bytes'))}: further tenants are refused when it is full`,
  'pin.degraded': (f) => `${text(f, 'name')}: ${plural(number(f, 'blocks'), 'block')} beyond the pin budget`,
  'pin.expired': (f) => text(f, 'name'),
  'pin.emptied': (f) => {
    const lost = number(f, 'blocks');
    return `${text(f, 'name')}: ${lost === 1 ? 'its only block is not' : `none of its ${whole(lost)} blocks is`} cached any more`;
  },
  'cache.cold': (f) => {
    const reason = f.reason ? `: ${text(f, 'reason')}` : '';
    if (f.released) return `the cache began empty${reason}`;
    return `${plural(number(f, 'lost_blocks'), 'block')}, ${bytes(number(f, 'lost_bytes'))} lost${reason}`;
  },
  'gpu_copy_pool.made': (f) => `${text(f, 'name')} ${text(f, 'device')} keeps GPU copies, up to ${bytes(number(f, 'capacity_bytes'))}`,
  'gpu_copy_pool.failed': (f) => `${text(f, 'device')}: ${text(f, 'problem')}`,
  'gateway.name_lost': (f) => `${text(f, 'gateway')}: ${text(f, 'reason')}`,
  'gateway.name_restored': (f) => `${text(f, 'gateway')}: new workers can map the memory again`,
  'block.corrupt': (f) => `${text(f, 'tenant')}: ${bytes(number(f, 'bytes'))} did not match their checksum and were dropped`,
  'memory.adopted': (f) => `${blocks(f)} of the process before, in ${duration(number(f, 'seconds'))}`,
  'sweep.done': (f) => `${text(f, 'kind')} sweep ${text(f, 'sweep')}: ${plural(number(f, 'blocks'), 'block')}`,
  'admission.changed': (f) =>
    f.closed ? 'the gate closed: a second sighting is asked for' : 'the gate opened: every block is admitted',
  'pool.resized': (f) => `the pool holds ${bytes(number(f, 'capacity_bytes'))}`,
  'node.not_resized': (f) => `the pool did not grow to ${bytes(number(f, 'wanted_bytes'))}: ${text(f, 'reason')}`,
  'blocks.invalidate': (f) => text(f, 'name'),
  'blocks.demote': (f) => text(f, 'name'),
  'node.resize': (f) => text(f, 'name'),
};

function pushSentence(f: Fields): string {
  const faults = Array.isArray(f.faults) ? f.faults.length : 0;
  return `${text(f, 'type')} generation ${text(f, 'generation')}` + (faults ? `: ${plural(faults, 'fault')}` : '');
}

/** A event that this page does not know yet is shown with its fields. */
export function eventSentence(event: LarderEvent): string {
  const known = SENTENCE[event.name];
  if (known) return known(event.fields);
  if (event.name.startsWith('push.')) return pushSentence(event.fields);
  return Object.entries(event.fields)
    .filter(([key]) => key !== 'at')
    .map(([key, value]) => `${key} ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`)
    .join(', ');
}
