/** Records that operators change here: names, forms, commands, and the nodes that a change is for. */

import { FIELDS } from '../../api/forms.generated';
import type { Node, NodeVerdict, RecordAnswer } from '../../api/types';
import { keyOf, type ApiField, type Json, type PushedType, type RecordType } from './fields';
import type { Level } from '../overview/findings';

interface Layout {
  noun: string;
  /** What the name of a new record is. */
  nameAbout: string;
  first: readonly string[];
  /** What a deletion means. */
  deleted: string;
}

const LAYOUTS: Record<RecordType, Layout> = {
  quotas: {
    noun: 'quota',
    nameAbout: 'The tenant: the `cache_salt` of its requests. `_default` is the tenant of requests without one.',
    first: ['limit_bytes', 'floor_bytes', 'tiers', 'note'],
    deleted: 'The tenant then has no limit and no floor.',
  },
  pins: {
    noun: 'pin',
    nameAbout: 'Up to 128 letters, digits, `.`, `_` and `-`.',
    first: ['prefix', 'text', 'tokens', 'keys', 'messages', 'model', 'tenant', 'strength', 'ttl_s', 'note'],
    deleted: 'Its blocks stay in the cache, and may be evicted like any others.',
  },
  policies: {
    noun: 'policy',
    nameAbout: 'The policy `default` applies to every node that no other policy selects.',
    first: ['algorithm', 'admission', 'admission_idle_s', 'high_watermark', 'low_watermark', 'selector', 'priority', 'note'],
    deleted: 'Its nodes apply another policy that selects them, or their defaults. They keep the cache.',
  },
  tiers: {
    noun: 'tier',
    nameAbout: 'Quotas and statistics refer to the tier by this name.',
    first: ['type', 'budget_bytes', 'parameters', 'spill', 'compress', 'order', 'selector', 'note'],
    deleted: 'Its nodes close the tier. Blocks are no longer loaded from it, and nothing is deleted from disks or servers.',
  },
  ceilings: {
    noun: 'ceiling',
    nameAbout: 'The tenant whose operators the ceiling limits.',
    first: ['max_limit_bytes', 'max_floor_bytes', 'max_pin_budget_bytes', 'strengths', 'no_bound', 'note'],
    deleted: 'The operators of the tenant then cannot change its quota.',
  },
  rates: {
    noun: 'rate',
    nameAbout: 'Up to 128 letters, digits, `.`, `_` and `-`.',
    first: ['model', 'prefill_tokens_per_s', 'space', 'note'],
    deleted: 'Usage then does not estimate the prefill time that the cache saves for its model.',
  },
  tokenizers: {
    noun: 'tokenizer',
    nameAbout: 'Up to 128 letters, digits, `.`, `_` and `-`.',
    first: ['model', 'tokenizer', 'chat_template', 'special_tokens', 'note'],
    deleted: 'Pins that were created with it stay. New pins and look-ups of its model then need tokens instead of text.',
  },
};

export const SOURCES = ['prefix', 'text', 'tokens', 'keys', 'messages'] as const;
export type Source = (typeof SOURCES)[number];
/** Fields of a pin that only some sources need, with these sources. */
const OF_SOURCE: Record<string, readonly Source[]> = {
  model: ['text', 'tokens', 'keys', 'messages'],
  tenant: ['text', 'tokens', 'keys', 'messages'],
  chunk_tokens: ['text', 'tokens', 'messages'],
  add_generation_prompt: ['messages'],
};

export function nounOf(type: RecordType): string {
  return LAYOUTS[type].noun;
}

export function aboutName(type: RecordType): string {
  return LAYOUTS[type].nameAbout;
}

export function aboutDeletion(type: RecordType): string {
  return LAYOUTS[type].deleted;
}

/** Whether nodes receive such records. */
export function isPushed(type: RecordType): type is PushedType {
  return !['ceilings', 'rates', 'tokenizers'].includes(type);
}

/** Fields of an existing pin that may change; the others identify its prefix. */
const OF_PIN = ['strength', 'tier', 'ttl_s', 'expires_at', 'refresh_on_hit', 'selector', 'note', 'managed_by'];

/** Fields of a new record, or of one that exists. */
export function fieldsOf(type: RecordType, exists = false): readonly ApiField[] {
  return type === 'pins' && exists ? FIELDS.pins.filter(({ name }) => OF_PIN.includes(name)) : FIELDS[type];
}

/** Fields in the order of the form: those that are always shown, and the others. `source` is set for a new pin. */
export function arrangedFields(type: RecordType, source: Source | null): { first: ApiField[]; more: ApiField[] } {
  const shown = fieldsOf(type, type === 'pins' && !source).filter(
    ({ name }) => !source || ((SOURCES as readonly string[]).includes(name) ? name === source : (OF_SOURCE[name]?.includes(source) ?? true)),
  );
  const order = source || type !== 'pins' ? LAYOUTS[type].first : ['strength', 'tier', 'ttl_s', 'expires_at', 'refresh_on_hit', 'note'];
  return {
    first: shown.filter(({ name }) => order.includes(name)).sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name)),
    more: shown.filter(({ name }) => !order.includes(name)),
  };
}

/** The name of a record, as its answer gives it. */
export function nameOf(type: RecordType, record: RecordAnswer): string {
  return String((record as unknown as Json)[keyOf(type)] ?? '');
}

function partOf(record: RecordAnswer, fields: readonly ApiField[]): Json {
  const all = record as unknown as Json;
  return Object.fromEntries(fields.flatMap(({ name }) => (all[name] === undefined ? [] : [[name, all[name]]])));
}

/** The part of a record that a change may set. */
export function bodyOf(type: RecordType, record: RecordAnswer): Json {
  return partOf(record, fieldsOf(type, true));
}

/** Everything that was given when the record was made. */
export function givenOf(type: RecordType, record: RecordAnswer): Json {
  return partOf(record, FIELDS[type]);
}

export type Selector = Record<string, string> | null;

export function selects(selector: Selector, labels: Record<string, string>): boolean {
  return selector === null || Object.entries(selector).every(([key, value]) => labels[key] === value);
}

export interface Reached {
  node: string;
  tone: Level;
  text: string;
  faults: string[];
}

/** What each node that a change affects would do with it; null verdicts: the nodes were not asked. */
export function reached(nodes: readonly Node[], before: Selector | undefined, after: Selector | undefined, verdicts: readonly NodeVerdict[] | null): Reached[] {
  return [...nodes].sort((a, b) => a.name.localeCompare(b.name)).flatMap((node): Reached[] => {
    const had = before !== undefined && selects(before, node.labels);
    const gets = after !== undefined && selects(after, node.labels);
    const verdict = verdicts?.find((each) => each.node === node.name);
    const row = (tone: Level, text: string, faults: string[] = []) => [{ node: node.name, tone, text, faults }];
    if (!gets) return had ? row('note', after === undefined ? 'has it now, and would drop it' : 'is no longer selected, and would drop it') : [];
    if (verdict && verdict.faults.length > 0) return row('bad', 'would refuse it', verdict.faults.map((fault) => `${fault.path}: ${fault.message}`));
    if (verdict?.error || node.state === 'lost') return row('warn', 'did not answer; receives it when it reconnects', verdict?.error ? [verdict.error] : []);
    return verdict?.accepted ? row('good', 'would accept it') : row('note', 'is selected');
  });
}

export const TIER_TYPES = ['disk', 'mooncake', 'redis', 's3'];

const APPLIED = { tone: 'good', text: 'has applied it' } as const;
const APPLIED_AND_LOST = { tone: 'warn', text: 'applied it, but does not report now' } as const;
const STATES: Record<string, { tone: Level; text: string }> = {
  nacked: { tone: 'bad', text: 'refused it and keeps its last good state' },
  lost: { tone: 'warn', text: 'does not report; receives it when it reconnects' },
};
const WAITING = { tone: 'note', text: 'has not answered yet' } as const;

/** How far each selected node is with a record. */
export function pushed(record: RecordAnswer): Reached[] {
  return Object.entries(record.status?.nodes ?? {}).sort(([a], [b]) => a.localeCompare(b)).map(([node, at]) => {
    const applied = (at.observed_generation ?? 0) >= (record.generation ?? 0);
    const { tone, text } = applied ? (at.state === 'lost' ? APPLIED_AND_LOST : APPLIED) : at.state === 'in_sync' ? WAITING : (STATES[at.state] ?? WAITING);
    const messages = (at.conditions ?? []).filter((each) => each.status !== 'True' && each.message).map((each) => each.message);
    // Of a lost node, all conditions say the same.
    return { node, tone, text, faults: tone === 'note' ? [] : [...new Set(messages)] };
  });
}

/** Whether no node is expected to answer any more. */
export function settled(record: RecordAnswer): boolean {
  return pushed(record).every((row) => row.tone !== 'note');
}

/** How far nodes are with the deletion of a record, by the newest generation of its type. */
export function dropped(nodes: readonly Node[], type: PushedType): Reached[] {
  return nodes.map((node) => {
    const done = (node.observed[type]?.generation ?? -1) >= (node.desired[type] ?? 0);
    const { tone, text } = done ? { tone: 'good' as const, text: 'has dropped it' } : (STATES[node.state] ?? WAITING);
    return { node: node.name, tone, text, faults: [] };
  });
}
