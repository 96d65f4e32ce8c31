import { expect, test } from 'vitest';
import { state } from '../../fixtures/states';
import { poolShares, ranked, sharesOf } from './shares';

test('the pool is shared by the largest tenants, the others, what is being written, and fragmentation', () => {
  const { pool, tenants } = state('over-limit').overview;
  const shares = poolShares(pool, tenants, ranked(tenants));
  expect(shares.map(({ name }) => name)).toEqual(['chat', 'code-search', 'batch-eval', 'rag-support', '_default', 'other tenants', 'reserved, quarantined', 'fragmentation']);
  expect(shares.map(({ kind }) => kind).slice(0, 6)).toEqual(['tenant-1', 'tenant-2', 'tenant-3', 'tenant-4', 'tenant-5', 'others']);
  const sum = shares.reduce((total, { kind, value }) => total + (kind === 'fragmentation' ? 0 : value), 0);
  expect(sum).toBe(pool.used_bytes);
});

test('tenants that are not in the list are others', () => {
  const { pool, tenants } = state('thousand-tenants').overview;
  const shares = poolShares(pool, tenants.slice(0, 500), ranked(tenants));
  expect(shares.find(({ kind }) => kind === 'others')?.value).toBeGreaterThan(0);
  expect(shares.slice(0, 5).map(({ value }) => value)).toEqual(tenants.slice(0, 5).map(({ bytes }) => bytes));
});

test('a tier uses the colours of the pool', () => {
  const ranks = ranked([{ tenant: 'a', bytes: 1 }, { tenant: 'b', bytes: 2 }]);
  expect(sharesOf([{ tenant: 'a', bytes: 7 }, { tenant: 'c', bytes: 2 }], ranks, 10)).toEqual([
    { kind: 'tenant-2', tenant: 'a', name: 'a', value: 7 },
    { kind: 'others', tenant: null, name: 'other tenants', value: 3 },
  ]);
});
