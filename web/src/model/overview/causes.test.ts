import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { manyChanges } from './causes';
import { judge } from './verdict';

const event = (name: string, at: number, actor = 'bob') => ({ name, at, seq: at, node: '', actor, fields: {} });

it('many changes of one kind by one actor within minutes are a note', () => {
  const flood = Array.from({ length: 24 }, (_, i) => event('pin.created', 1_000 + i));
  const others = [...Array.from({ length: 9 }, (_, i) => event('quota.changed', 1_000 + i)), ...Array.from({ length: 30 }, (_, i) => event('pin.created', 1_000 + i, ''))];
  expect(manyChanges([...flood, ...others], 1_060)).toMatchObject([{ level: 'note', page: 'pins', title: 'bob created 24 pins within 10 min', detail: 'The last one 37 s ago. Changes shows each of them.' }]);
  expect(manyChanges(flood, 2_000)).toEqual([]);
  const edits = Array.from({ length: 10 }, (_, i) => event('quota.changed', 1_000 + i));
  expect(manyChanges(edits, 1_060)).toMatchObject([{ page: 'tenants', title: 'bob changed 10 quotas within 10 min' }]);
});

it('a policy that evicts nothing is a warning while blocks are refused', () => {
  const { overview } = state('busy');
  const nodes = overview.nodes.map((node) => ({ ...node, stats: node.stats && { ...node.stats, policy: { ...node.stats.policy, algorithm: 'noop' as const } } }));
  const of = (refused: Record<string, number>) => judge({ ...overview, nodes }, refused, overview.at).findings.filter(({ page }) => page === 'policy');
  expect(of({})).toMatchObject([{ level: 'note', title: 'The policy noop evicts nothing' }]);
  expect(of({ pool_full: 3 })).toMatchObject([{ level: 'warn' }]);
});
