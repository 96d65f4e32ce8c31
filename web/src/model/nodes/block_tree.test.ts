import { describe, expect, it } from 'vitest';
import type { Block } from '../../api/types';
import { blockTree, continuationsOf, keysOf, visible } from './block_tree';

const block = (key: string, parent: string, more: Partial<Block> = {}): Block =>
  ({
    node: 'a', key, parent, tenant: 't', model: 'm', space: 's', tier: 'l1', state: 'ready', bytes: 10, charged_bytes: 16, leases: 0, pins: [], strength: '',
    guaranteed: false, stored_at: 1, used_at: 2, hits: 1, checksum: '', descriptor: 0, segment: 0, offset: 0, ...more,
  }) as Block;

describe('a prefix tree', () => {
  it('joins blocks without a fork to one run, and forks where prefixes part', () => {
    const [run, ...others] = blockTree([block('d', 'b'), block('b', 'a', { pins: ['p'] }), block('a', '', { hits: 9 }), block('c', 'b'), block('e', 'd')]);
    expect(others).toEqual([]);
    expect(run).toMatchObject({ keys: ['a', 'b'], depth: 0, hits: 9, bytes: 32, treeBytes: 80, treeBlocks: 5, pinned: 1, pins: ['p'], orphan: false });
    expect(run?.children.map((child) => [child.keys, child.depth])).toEqual([[['d', 'e'], 2], [['c'], 2]]);
    expect(run && continuationsOf(run)).toBe(2);
    expect(run && keysOf(run)).toEqual(['a', 'b']); // a sweep takes what was stored after them, too
  });

  it('counts copies on several nodes once as a block of the prefix, and says where they are', () => {
    const [run] = blockTree([block('a', ''), block('a', '', { node: 'b', tier: 'disk', leases: 2 })]);
    expect(run).toMatchObject({ keys: ['a'], copies: 2, bytes: 32, leased: 1, nodes: ['a', 'b'], tiers: ['disk', 'l1'] });
  });

  it('begins a tree of its own where the parent is not cached, and keeps spaces apart', () => {
    const runs = blockTree([block('b', 'gone'), block('a', ''), block('c', 'a', { space: 'other' })]);
    expect(runs.map((run) => [run.keys, run.orphan])).toEqual([[['c'], true], [['a'], false], [['b'], true]]);
  });

  it('holds prefixes of any length', () => {
    const long = Array.from({ length: 50_000 }, (_, i) => block(`k${i}`, i ? `k${i - 1}` : ''));
    const [run] = blockTree(long);
    expect([run?.keys.length, run && keysOf(run).length]).toEqual([50_000, 4_096]);
  });

  it('shows what continues a run once it is opened', () => {
    const runs = blockTree([block('a', ''), block('b', 'a'), block('c', 'a')]);
    expect(visible(runs, new Set())).toHaveLength(1);
    expect(visible(runs, new Set(['s/a'])).map((row) => row.level)).toEqual([0, 1, 1]);
  });
});
