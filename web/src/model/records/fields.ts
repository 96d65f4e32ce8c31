/** Fields of the forms: what is typed, the JSON that it stands for, and where the server's messages belong. */

import { exactSize } from '../../format';
import { faultOf, type Rule } from './rules';

export type { Rule };

/** Records that nodes receive. */
export type PushedType = 'quotas' | 'pins' | 'policies' | 'tiers';
export type RecordType = PushedType | 'ceilings' | 'rates' | 'tokenizers';

/** A field of a PUT body, from the API's description. */
export interface ApiField {
  name: string;
  kind: 'size' | 'number' | 'text' | 'flag' | 'choice' | 'labels' | 'shares' | 'json' | 'set' | 'file' | 'time';
  nullable: boolean;
  about: string;
  choices?: readonly string[];
  /** What a value has to meet, besides null. */
  rule?: Rule;
  initial?: unknown;
  example?: unknown;
}

/** Share of a tenant in one tier, as typed. */
export interface Share {
  tier: string;
  floor: string;
  limit: string;
}

export type Value = string | boolean | Share[];
export type Values = Record<string, Value>;
export type Json = Record<string, unknown>;
/** Messages by field; the record's own name is `name`. */
export type Faults = Record<string, string[]>;

const isObject = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value);

function sizeText(value: unknown): string {
  return typeof value === 'number' ? exactSize(value) : typeof value === 'string' ? value : '';
}

/** What the form shows for a value of a record, or before one is typed (undefined). */
export function shownValue(field: ApiField, value: unknown): Value {
  const given = value === undefined ? field.initial : value;
  switch (field.kind) {
    case 'flag':
      return given === true;
    case 'choice':
      return typeof given === 'string' ? given : (field.choices?.[0] ?? '');
    case 'shares':
      return Object.entries(isObject(given) ? given : {}).map(([tier, share]) => {
        const { floor_bytes, limit_bytes } = isObject(share) ? share : {};
        return { tier, floor: floor_bytes ? sizeText(floor_bytes) : '', limit: sizeText(limit_bytes) };
      });
    case 'labels':
      return Object.entries(isObject(given) ? given : {}).map(([key, label]) => `${key}=${String(label)}`).join('\n');
    case 'set':
      return Array.isArray(given) ? JSON.stringify(given) : '';
    case 'file':
      return '';
    case 'time':
      return typeof given === 'number' ? new Date(given * 1000).toISOString() : '';
    case 'json':
      return given === undefined || given === null ? '' : JSON.stringify(given, null, 2);
    case 'size':
      return sizeText(given);
    default:
      return given === undefined || given === null ? '' : String(given);
  }
}

type Parsed = { value: unknown } | { fault: string };

/**
 * The JSON of what was typed, or what the API's description expects instead; undefined: the field is left out. Sizes
 * stay text: the server reads them.
 */
export function parsedValue(field: ApiField, typed: Value): Parsed {
  const parsed = valueOf(field, typed);
  const fault = 'value' in parsed && field.rule ? faultOf(field.rule, parsed.value) : null;
  return fault ? { fault } : parsed;
}

function valueOf(field: ApiField, typed: Value): Parsed {
  const nothing = { value: field.nullable ? null : undefined };
  if (typeof typed === 'boolean') return { value: typed };
  if (Array.isArray(typed)) return sharesOf(typed);
  const text = typed.trim();
  if (field.name === 'chat_template') return { value: text ? typed : null };
  if (field.kind === 'set') return { value: text ? (JSON.parse(text) as unknown) : field.nullable ? null : [] };
  if (field.kind === 'file') return { value: text ? typed : undefined };
  if (field.kind === 'text') return { value: text || !field.nullable ? text : null };
  if (!text) return nothing;
  if (field.kind === 'number') return { value: Number.isFinite(Number(text)) ? Number(text) : text };
  if (field.kind === 'labels') return labelsOf(text, field.name === 'special_tokens' ? /\n/ : /[\n,]/);
  if (field.kind === 'json') {
    try {
      return { value: JSON.parse(text) as unknown };
    } catch (error) {
      return { fault: `expected JSON: ${error instanceof Error ? error.message : 'it cannot be read'}` };
    }
  }
  return { value: text };
}

function sharesOf(shares: Share[]): Parsed {
  const found: Json = {};
  for (const { tier, floor, limit } of shares) {
    const name = tier.trim();
    if (!name && !floor.trim() && !limit.trim()) continue;
    if (!name) return { fault: 'expected the name of a tier in each row' };
    if (name in found) return { fault: `expected each tier once, got '${name}' twice` };
    found[name] = { floor_bytes: floor.trim() || 0, limit_bytes: limit.trim() || null };
  }
  return { value: found };
}

function labelsOf(text: string, between: RegExp): Parsed {
  const found: Json = {};
  for (const line of text.split(between).map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf('=');
    if (at < 1) return { fault: `expected one LABEL=VALUE in each line, got '${line}'` };
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return { value: found };
}

const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

/** JSON merge patch (RFC 7396) that turns `before` into `after`. */
export function mergePatch(before: Json, after: Json): Json {
  const patch: Json = {};
  for (const name of Object.keys(before)) if (!(name in after)) patch[name] = null;
  for (const [name, value] of Object.entries(after)) {
    const old = before[name];
    if (same(old, value)) continue;
    patch[name] = isObject(old) && isObject(value) ? mergePatch(old, value) : value;
  }
  return patch;
}

/** The field that names a record. */
export function keyOf(type: RecordType): 'tenant' | 'name' {
  return type === 'quotas' || type === 'ceilings' ? 'tenant' : 'name';
}

/** The name in the words of a label: `store_rate_bytes` is `Store rate`. */
export function labelOf(name: string): string {
  const words = (name === 'ttl_s' ? 'time_to_live_s' : name).replace(/_per_s$/, ' per second').replace(/_s$/, ', seconds').replace(/_bytes$|_bytes(?=_)/, '').replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/**
 * The field that a path of the server names, and the rest of the path: `quotas.acme.tiers.disk.floor_bytes` is `tiers`
 * and `disk.floor_bytes`. The field is empty if it is none of the form's.
 */
export function fieldAt(path: string, type: RecordType, name: string, fields: readonly string[]): [string, string] {
  let rest = path;
  if (rest.startsWith(`${type}.`)) {
    rest = rest.slice(type.length + 1);
    if (rest === name || rest.startsWith(`${name}.`)) rest = rest.slice(name.length + 1);
    else if (/^['"]/.test(rest)) rest = rest.slice(rest.lastIndexOf(rest.charAt(0)) + 2);
  }
  if (rest === 'tenant' && keyOf(type) === 'tenant') return ['name', ''];
  const field = rest.split(/[.[]/, 1)[0] ?? '';
  return fields.includes(field) || field === 'name' ? [field, rest.slice(field.length).replace(/^\./, '')] : ['', rest];
}

/** Put each message of the server next to the field that it names; messages of other paths are under ``. */
export function placed(errors: readonly { path: string; message: string }[], type: RecordType, name: string, fields: readonly string[]): Faults {
  const found: Faults = {};
  for (const { path, message } of errors) {
    const [field, rest] = fieldAt(path, type, name, fields);
    const text = rest ? `${rest}: ${message}` : message;
    const there = (found[field] ??= []);
    if (!there.includes(text)) there.push(text);
  }
  return found;
}
