import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { applied, cacheStart, conditions } from './nodes';

const { overview: busy } = state('busy');

it('a node says how its cache began', () => {
  const { overview } = state('cold');
  expect(overview.nodes.map((node) => cacheStart(node, overview.at))).toEqual([
    'cache began empty 5 min 12 s ago',
    'cache released, began empty 2 h ago',
  ]);
  const [older, warm] = busy.nodes;
  if (!warm?.stats || !older) throw new Error('no numbers');
  expect(cacheStart(warm, busy.at)).toBe('21,480 blocks kept at its start 1 d 2 h ago');
  expect(cacheStart(older, busy.at)).toBe('');
  const start = { ...warm.stats.start, kind: 'first' as const, at: busy.at - 60 };
  expect(cacheStart({ ...warm, stats: { ...warm.stats, start } }, busy.at)).toBe('new cache, 1 min ago');
  expect(cacheStart({ ...warm, stats: null }, busy.at)).toBe('');
});

it('a node shows each type that it should have or has', () => {
  const joining = state('nacked').overview.nodes.find((node) => node.state === 'joining');
  if (!joining) throw new Error('no joining node');
  expect(applied(joining)).toEqual([
    { type: 'pins', desired: 9, observed: null, same: false, nothing: false },
    { type: 'policies', desired: 1, observed: null, same: false, nothing: false },
    { type: 'quotas', desired: 15, observed: null, same: false, nothing: false },
  ]);
});

it('a type without any record is nothing to apply', () => {
  const [node] = state('fresh').overview.nodes;
  if (!node) throw new Error('no node');
  const rows = applied({ ...node, desired: { tiers: 0, pins: 3 }, observed: {} });
  expect(rows).toEqual([
    { type: 'pins', desired: 3, observed: null, same: false, nothing: false },
    { type: 'tiers', desired: 0, observed: null, same: true, nothing: true },
  ]);
});

it('a node is marked by its own fields, whatever findings are shown', () => {
  const marks = (name: 'cold' | 'nacked') => state(name).overview.nodes.map((node) => conditions(node).map(({ tone, label }) => [tone, label]));
  expect(marks('cold')).toEqual([[['warn', 'cache cold']], []]);
  expect(marks('nacked')).toContainEqual([['note', 'draining'], ['warn', 'GPU copies: problem'], ['warn', 'tier out of service']]);
  const [node] = busy.nodes;
  if (!node?.stats) throw new Error('no numbers');
  const crashing = { type: 'crash_loop' as const, message: 'its data plane ended 3 times', since: busy.at - 60, ended_at: null };
  expect(conditions({ ...node, conditions: [crashing], clock_offset_s: -5 })).toMatchObject([
    { tone: 'bad', label: 'crash loop', title: crashing.message }, { label: 'clock 5 s behind' },
  ]);
  expect(conditions({ ...node, conditions: [{ ...crashing, ended_at: busy.at }] })).toEqual([]);
  expect(conditions({ ...node, draining: true, stats: null })).toMatchObject([{ tone: 'warn', label: 'to drain' }]);
});
