import { describe, expect, it } from 'vitest';
import { FIELDS, NAMES } from '../../api/forms.generated';
import { keyOf, parsedValue, shownValue, type ApiField, type RecordType } from './fields';
import { faultOf, type Rule } from './rules';

const TYPES = Object.keys(FIELDS) as RecordType[];
const ALL: [string, ApiField][] = TYPES.flatMap((type) => FIELDS[type].map((field): [string, ApiField] => [`${type}.${field.name}`, field]));

function field(type: RecordType, name: string): ApiField {
  const found = FIELDS[type].find((each) => each.name === name);
  if (!found) throw new Error(`${type} has no field ${name}`);
  return found;
}

/** All rules inside a rule. */
function within(rule: Rule): Rule[] {
  const inner = [rule.items, rule.propertyNames, rule.additionalProperties, ...Object.values(rule.properties ?? {}), ...(rule.anyOf ?? [])];
  return [rule, ...inner.filter((each) => each !== undefined).flatMap(within)];
}

describe('what is typed', () => {
  it.each([
    ['quotas', 'note', 'x'.repeat(1_025), 'expected at most 1,024 characters, got 1,025'],
    ['quotas', 'note', '\u0007', 'expected printable characters'],
    ['quotas', 'managed_by', 'team a', 'expected at most 128 of the characters A-Z a-z 0-9 . _ -'],
    ['quotas', 'weight', '0', 'expected a number from 0.01 to 1,000, got 0'],
    ['quotas', 'weight', 'two', "expected a number from 0.01 to 1,000, got 'two'"],
    ['quotas', 'limit_bytes', 'apples', "expected bytes, or a size such as 4GiB, got 'apples'"],
    ['quotas', 'limit_bytes', '2EiB', 'expected a size from 0 to 1EiB, got 2EiB'],
    ['quotas', 'store_rate_bytes', '0', 'expected a size from 1 to 1EiB, got 0'],
    ['quotas', 'selector', 'zo ne=a', 'expected a label of at most 63 letters'],
    ['quotas', 'selector', 'zone=a b', 'zone: expected a value of at most 63 letters'],
    ['quotas', 'tiers', [{ tier: 'disk', floor: 'much', limit: '' }], 'disk: floor_bytes: expected bytes'],
    ['policies', 'priority', '1001', 'expected a whole number from 0 to 1,000, got 1,001'],
    ['policies', 'priority', '1.5', 'expected a whole number from 0 to 1,000, got 1.5'],
    ['policies', 'high_watermark', '0.4', 'expected a number from 0.5 to 1, got 0.4'],
    ['tiers', 'max_bytes_in_flight', '1KiB', 'expected a size from 1MiB to 64GiB, got 1KiB'],
    ['tiers', 'load_deadline_s', '0', 'expected a number above 0 and at most 300, got 0'],
    ['pins', 'keys', '["ab"]', "[0]: expected 64 hex digits, got 'ab'"],
    ['pins', 'tokens', '[]', 'expected at least 1 item'],
    ['rates', 'space', 'ab', 'expected 32 hex digits'],
  ] as const)('in %s.%s is held against the description: %j', (type, name, typed, message) => {
    const parsed = parsedValue(field(type, name), typeof typed === 'string' ? typed : [...typed]);
    expect('fault' in parsed && parsed.fault).toContain(message);
  });

  it.each(ALL)('that %s shows as its example or first value is right', (_, of) => {
    for (const value of [of.example, of.initial].filter((each) => each !== undefined)) expect(parsedValue(of, shownValue(of, value))).not.toHaveProperty('fault');
  });

  it.each(ALL)('in %s can be refused in words', (_, of) => {
    for (const rule of within(of.rule ?? {})) if (rule.pattern) expect(rule['x-expected']).toMatch(/^[a-z0-9]/);
  });
});

describe('the name of a record', () => {
  it.each(TYPES)('of %s is held against the description', (type) => {
    expect(faultOf(NAMES[type], 'acme-1')).toBeNull();
    expect(faultOf(NAMES[type], 'a/b')).toContain(keyOf(type) === 'tenant' ? 'visible characters' : 'of the characters A-Z a-z');
    expect(faultOf(NAMES[type], 'x'.repeat(129))).toContain('expected 1 to ');
  });
});
