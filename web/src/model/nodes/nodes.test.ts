import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { applied, cacheStart, conditions, lostAtStart } from './nodes';

const { overview: busy } = state('busy');

it('a node says how its cache began, and marks a cold one', () => {
  const { overview } = state('cold');
  expect(overview.nodes.map((node) => cacheStart(node, overview.at))).toEqual([
    'cache began empty 5 min 12 s ago',
    'cache released, began empty 2 h ago',
  ]);
  expect(overview.nodes.map((node) => conditions(node).map((each) => [each.tone, each.label]))).toEqual([[['warn', 'cache cold']], []]);
  const [older, warm] = busy.nodes;
  if (!warm?.stats || !older) throw new Error('no numbers');
  expect(cacheStart(warm, busy.at)).toBe('21,480 blocks kept at its start 1 d 2 h ago');
  expect(cacheStart(older, busy.at)).toBe('');
  const start = { ...warm.stats.start, kind: 'first' as const, at: busy.at - 60 };
  expect(cacheStart({ ...warm, stats: { ...warm.stats, start } }, busy.at)).toBe('new cache, 1 min ago');
  expect(cacheStart({ ...warm, stats: null }, busy.at)).toBe('');
  expect(lostAtStart({ ...start, lost_blocks: 1, lost_bytes: 2048 })).toBe('1 block (2 KiB) was lost');
  expect(lostAtStart({ ...start, lost_blocks: 2, lost_bytes: 0 })).toBe('2 blocks were lost');
});

it('a node in a crash loop shows it until it has ended', () => {
  const [node] = busy.nodes;
  if (!node) throw new Error('no node');
  const crashing = { type: 'crash_loop' as const, message: 'its data plane ended 3 times', since: busy.at - 60, ended_at: null };
  expect(conditions({ ...node, conditions: [crashing] })).toContainEqual({ tone: 'bad', label: 'crash loop', title: crashing.message });
  expect(conditions({ ...node, conditions: [{ ...crashing, ended_at: busy.at }] })).toEqual(conditions({ ...node, conditions: [] }));
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
