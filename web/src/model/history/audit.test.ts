import { expect, it } from 'vitest';
import { changes } from './audit';

it('an entry of the audit tells the fields that differ', () => {
  expect(changes({ before: { a: 1, b: 'x' }, after: { b: 'x', c: { d: null } } })).toEqual([
    { field: 'a', before: '1', after: '' },
    { field: 'c', before: '', after: '{"d":null}' },
  ]);
  expect(changes({ before: { limit_bytes: 5 * 1024 ** 3 }, after: null })[0]?.before).toBe('5 GiB');
  expect(changes({ before: null, after: null })).toEqual([]);
});
