import { expect, it } from 'vitest';
import type { AuditEntry, AuditList } from '../../api/types';
import { changes, continued } from './audit';

it('an entry of the audit tells the fields that differ', () => {
  expect(changes({ before: { a: 1, b: 'x' }, after: { b: 'x', c: { d: null } } })).toEqual([
    { field: 'a', before: '1', after: '' },
    { field: 'c', before: '', after: '{"d":null}' },
  ]);
  expect(changes({ before: { limit_bytes: 5 * 1024 ** 3 }, after: null })[0]?.before).toBe('5 GiB');
  expect(changes({ before: null, after: null })).toEqual([]);
});

it('older entries stay under the newest, and go if there are others between', () => {
  const list = (ids: number[], next_cursor: string): AuditList => ({ items: ids.map((id) => ({ id }) as AuditEntry), total: 9, next_cursor });
  const ids = ({ items, next_cursor }: AuditList) => [items.map(({ id }) => id), next_cursor];
  expect(ids(continued(list([9, 8, 7], 'c7'), list([8, 7, 6, 5, 4], 'c4')))).toEqual([[9, 8, 7, 6, 5, 4], 'c4']);
  expect(ids(continued(list([9, 8, 7], 'c7'), list([6, 5, 4], 'c4')))).toEqual([[9, 8, 7], 'c7']);
  expect(ids(continued(list([2, 1], ''), list([2, 1], '')))).toEqual([[2, 1], '']);
  expect(ids(continued(list([2, 1], ''), null))).toEqual([[2, 1], '']);
});
