import { describe, expect, it } from 'vitest';
import { exactSize } from '../../format';
import { FIELDS } from '../../api/forms.generated';
import { fieldAt, labelOf, mergePatch, parsedValue, placed, shownValue, type ApiField, type RecordType } from './fields';
import { worded } from './worded';

function field(type: RecordType, name: string): ApiField {
  const found = FIELDS[type].find((each) => each.name === name);
  if (!found) throw new Error(`${type} has no field ${name}`);
  return found;
}

describe('values', () => {
  it('are shown as they are typed, and typed as the API reads them', () => {
    for (const [type, name, value, shown] of [
      ['quotas', 'limit_bytes', 4 * 1024 ** 3, '4GiB'],
      ['quotas', 'limit_bytes', 1_500, '1500'],
      ['quotas', 'weight', 2.5, '2.5'],
      ['quotas', 'mode', 'observe', 'observe'],
      ['quotas', 'note', 'a  b', 'a  b'],
      ['policies', 'admission', true, true],
      ['policies', 'selector', { zone: 'b', rack: '' }, 'zone=b\nrack='],
    ] as const) {
      const of = field(type, name);
      expect(shownValue(of, value)).toEqual(shown);
      const parsed = parsedValue(of, shownValue(of, value));
      expect(parsed).toEqual({ value: name === 'limit_bytes' ? shown : value });
    }
  });

  it('that are empty are null, or left out where null has no meaning', () => {
    expect(parsedValue(field('quotas', 'limit_bytes'), ' ')).toEqual({ value: null });
    expect(parsedValue(field('quotas', 'weight'), '')).toEqual({ value: undefined });
    expect(parsedValue(field('quotas', 'selector'), '')).toEqual({ value: null });
  });

  it('of new records begin with what the API does without them', () => {
    expect(shownValue(field('tiers', 'spill'), undefined)).toBe('commit');
    expect(shownValue(field('tiers', 'max_bytes_in_flight'), undefined)).toBe('64MiB');
    expect(shownValue(field('quotas', 'limit_bytes'), undefined)).toBe('');
  });

  it('of shares in tiers are rows', () => {
    const of = field('quotas', 'tiers');
    const rows = shownValue(of, { disk: { floor_bytes: 1024, limit_bytes: null }, s3: { limit_bytes: 2048 } });
    expect(rows).toEqual([{ tier: 'disk', floor: '1KiB', limit: '' }, { tier: 's3', floor: '', limit: '2KiB' }]);
    expect(parsedValue(of, rows)).toEqual({
      value: { disk: { floor_bytes: '1KiB', limit_bytes: null }, s3: { floor_bytes: 0, limit_bytes: '2KiB' } },
    });
    expect(parsedValue(of, [{ tier: '', floor: '1', limit: '' }])).toHaveProperty('fault');
    expect(parsedValue(of, [{ tier: 'a', floor: '', limit: '' }, { tier: 'a ', floor: '', limit: '' }])).toHaveProperty('fault');
    expect(parsedValue(of, [{ tier: '', floor: '', limit: '' }])).toEqual({ value: {} });
  });

  it('that cannot be read are faults of their field', () => {
    expect(parsedValue(field('tiers', 'parameters'), '{')).toHaveProperty('fault');
    expect(parsedValue(field('tiers', 'selector'), 'zone')).toEqual({ fault: "expected one LABEL=VALUE in each line, got 'zone'" });
  });
});

it('a merge patch names what differs, and nothing else', () => {
  expect(mergePatch({ a: 1, b: 2, c: { d: 1, e: 2 } }, { a: 1, b: 3, c: { d: 1, f: 4 } })).toEqual({ b: 3, c: { e: null, f: 4 } });
  expect(mergePatch({ selector: { zone: 'a' } }, { selector: null })).toEqual({ selector: null });
  expect(mergePatch({ list: [1] }, { list: [1] })).toEqual({});
});

describe('messages of the server', () => {
  const fields = FIELDS.quotas.map((each) => each.name);

  it('stand at the field that they name', () => {
    expect(fieldAt('limit_bytes', 'quotas', 'acme', fields)).toEqual(['limit_bytes', '']);
    expect(fieldAt('quotas.acme.tiers.disk.floor_bytes', 'quotas', 'acme', fields)).toEqual(['tiers', 'disk.floor_bytes']);
    expect(fieldAt('quotas.a.b.limit_bytes', 'quotas', 'a.b', fields)).toEqual(['limit_bytes', '']);
    expect(fieldAt("quotas.'a\\u200b'.limit_bytes", 'quotas', 'a\u200b', fields)).toEqual(['limit_bytes', '']);
    expect(fieldAt('quotas.acme.tenant', 'quotas', 'acme', fields)).toEqual(['name', '']);
    expect(fieldAt('tiers.nvme.parameters.directories[0]', 'tiers', 'nvme', ['parameters'])).toEqual(['parameters', 'directories[0]']);
    expect(fieldAt('wait', 'quotas', 'acme', fields)).toEqual(['', 'wait']);
  });

  it('are all shown, each once', () => {
    const errors = [
      { path: 'limit_bytes', message: 'too small' },
      { path: 'limit_bytes', message: 'too small' },
      { path: 'quotas.acme.tiers.disk.floor_bytes', message: 'too large' },
      { path: 'document', message: 'expected a document' },
    ];
    expect(placed(errors, 'quotas', 'acme', fields)).toEqual({
      limit_bytes: ['too small'],
      tiers: ['disk.floor_bytes: too large'],
      '': ['document: expected a document'],
    });
  });
});

it('labels and values are words', () => {
  expect([labelOf('store_rate_bytes'), labelOf('max_bytes_in_flight'), labelOf('admission_idle_s')]).toEqual(['Store rate', 'Max in flight', 'Admission idle, seconds']);
  expect([exactSize(0), exactSize(1023), exactSize(1536), exactSize(3 * 1024 ** 2)]).toEqual(['0', '1023', '1536', '3MiB']);
  expect([worded('limit_bytes', 1536), worded('limit_bytes', 2048), worded('limit_bytes', 5), worded('limit_bytes', null)]).toEqual(['1536 B (1.5 KiB)', '2 KiB', '5 B', '–']);
  expect(worded('tiers', { disk: { floor_bytes: 0, limit_bytes: 1024 } })).toBe('disk: floor 0 B, limit 1 KiB');
  expect([worded('selector', { zone: 'b' }), worded('admission', false), worded('ttl_s', 90)]).toEqual(['zone=b', 'no', '1 min 30 s']);
});
