/** Rules of the API's description for what is typed into a form: patterns, bounds and lengths, in words. */

import { exactSize, sizeOf } from '../../format';

/** The part of a JSON Schema that forms check. */
export interface Rule {
  type?: string;
  pattern?: string;
  /** What the pattern matches, in words. */
  'x-expected'?: string;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minItems?: number;
  maxItems?: number;
  maxProperties?: number;
  items?: Rule;
  propertyNames?: Rule;
  additionalProperties?: Rule;
  properties?: Readonly<Record<string, Rule>>;
  anyOf?: readonly Rule[];
}

const MAX_SHOWN = 40;
const digits = new Intl.NumberFormat('en', { maximumFractionDigits: 20 });

/** What a rule expects of a value that it refuses, and where in the value; null: the value is right, or may be. */
export function faultOf(rule: Rule, value: unknown): string | null {
  if (value === null || value === undefined) return null;
  if (rule.anyOf) return ofChoices(rule.anyOf, value);
  if (typeof value === 'string') return ofText(rule, value);
  if (typeof value === 'number') return ofNumber(rule, value);
  if (Array.isArray(value)) return ofList(rule, value);
  return typeof value === 'object' ? ofMap(rule, value as Record<string, unknown>) : null;
}

/** A number in a text field is still text: whether it is one of the choices decides which rule it has to meet. */
function ofChoices(choices: readonly Rule[], value: unknown): string | null {
  const number = choices.find(({ type }) => type === 'integer' || type === 'number');
  const text = choices.find(({ type }) => type === 'string');
  if (typeof value === 'string') {
    const fault = text ? faultOf(text, value) : null;
    const size = text?.pattern && number ? sizeOf(value) : null;
    return fault ?? (number && size !== null ? ofNumber(number, size, exactSize) : null);
  }
  const kind = Array.isArray(value) ? 'array' : typeof value;
  const choice = kind === 'number' ? number : choices.find(({ type }) => type === kind);
  return choice ? faultOf(choice, value) : null;
}

function ofText(rule: Rule, text: string): string | null {
  if (rule.type === 'integer' || rule.type === 'number') return `expected ${rangeOf(rule, (value) => digits.format(value))}, got '${shown(text)}'`;
  if (rule.type !== undefined && rule.type !== 'string') return null;
  const length = [...text].length;
  const { minLength = 0, maxLength = Infinity } = rule;
  if (length < minLength) return `expected at least ${count(minLength, 'character')}`;
  if (length > maxLength) return `expected at most ${count(maxLength, 'character')}, got ${digits.format(length)}`;
  if (rule.pattern && !new RegExp(rule.pattern, 'u').test(text)) return `expected ${rule['x-expected'] ?? `text that matches ${rule.pattern}`}, got '${shown(text)}'`;
  return null;
}

function ofNumber(rule: Rule, value: number, worded: (value: number) => string = (each) => digits.format(each)): string | null {
  const { minimum = -Infinity, maximum = Infinity, exclusiveMinimum = -Infinity, exclusiveMaximum = Infinity } = rule;
  const fits = minimum <= value && value <= maximum && exclusiveMinimum < value && value < exclusiveMaximum;
  if (fits && (rule.type !== 'integer' || Number.isInteger(value))) return null;
  return `expected ${rangeOf(rule, worded)}, got ${worded(value)}`;
}

/** `a whole number from 0 to 1,000`, `a number above 0 and at most 300`. */
function rangeOf(rule: Rule, worded: (value: number) => string): string {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = rule;
  const noun = worded === exactSize ? 'a size' : rule.type === 'integer' ? 'a whole number' : 'a number';
  if (minimum !== undefined && maximum !== undefined) return `${noun} from ${worded(minimum)} to ${worded(maximum)}`;
  const bounds = [
    minimum === undefined ? '' : `at least ${worded(minimum)}`,
    exclusiveMinimum === undefined ? '' : `above ${worded(exclusiveMinimum)}`,
    maximum === undefined ? '' : `at most ${worded(maximum)}`,
    exclusiveMaximum === undefined ? '' : `below ${worded(exclusiveMaximum)}`,
  ].filter(Boolean);
  return [noun, bounds.join(' and ')].filter(Boolean).join(' ');
}

function ofList(rule: Rule, values: readonly unknown[]): string | null {
  const { minItems = 0, maxItems = Infinity } = rule;
  if (values.length < minItems) return `expected at least ${count(minItems, 'item')}`;
  if (values.length > maxItems) return `expected at most ${count(maxItems, 'item')}, got ${digits.format(values.length)}`;
  return rule.items ? first(values.map((each, index) => [`[${index}]`, rule.items ?? {}, each])) : null;
}

function ofMap(rule: Rule, values: Readonly<Record<string, unknown>>): string | null {
  const entries = Object.entries(values);
  const { maxProperties = Infinity, propertyNames = {}, additionalProperties = {}, properties = {} } = rule;
  if (entries.length > maxProperties) return `expected at most ${maxProperties}, got ${entries.length}`;
  const names = first(entries.map(([name]) => ['', propertyNames, name]));
  return names ?? first(entries.map(([name, each]) => [name, properties[name] ?? additionalProperties, each]));
}

/** The first fault of the parts of a value, with the part's name. */
function first(parts: readonly (readonly [string, Rule, unknown])[]): string | null {
  for (const [name, rule, value] of parts) {
    const fault = faultOf(rule, value);
    if (fault) return name ? `${shown(name)}: ${fault}` : fault;
  }
  return null;
}

const shown = (text: string) => (text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text);
const count = (number: number, noun: string) => `${digits.format(number)} ${noun}${number === 1 ? '' : 's'}`;
