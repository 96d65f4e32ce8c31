/** Cached blocks as a prefix tree: chains of blocks without a fork are one run. */

import type { Block } from '../../api/types';

export interface Run {
  /** Key of the first block. */
  id: string;
  tenant: string;
  model: string;
  space: string;
  /** Position of the first block in its prefix; the parents that are not listed are not counted. */
  depth: number;
  keys: string[];
  /** Copies on nodes, in all tiers that the list shows. */
  copies: number;
  bytes: number;
  /** Bytes of the run and of everything that continues it. */
  treeBytes: number;
  treeBlocks: number;
  /** Hits of the first block. */
  hits: number;
  usedAt: number;
  storedAt: number;
  pinned: number;
  leased: number;
  nodes: string[];
  tiers: string[];
  pins: string[];
  /** The blocks before the first one are not cached, or not listed. */
  orphan: boolean;
  children: Run[];
}

interface Entry {
  block: Block;
  copies: Block[];
  children: Entry[];
}

/** Runs without a listed parent, the largest tree first. */
export function blockTree(blocks: readonly Block[]): Run[] {
  const entries = new Map<string, Entry>();
  for (const block of blocks) {
    const id = `${block.space}/${block.key}`;
    const known = entries.get(id);
    if (known) known.copies.push(block);
    else entries.set(id, { block, copies: [block], children: [] });
  }
  const roots: Entry[] = [];
  for (const entry of entries.values()) {
    const parent = entry.block.parent ? entries.get(`${entry.block.space}/${entry.block.parent}`) : undefined;
    (parent?.children ?? roots).push(entry);
  }
  return sortedRuns(roots.map((root) => runFrom(root, 0)));
}

/** Without recursion: a prefix may have tens of thousands of blocks. */
function runFrom(root: Entry, rootDepth: number): Run {
  const whole: { run: Run; rest: Entry[] }[] = [];
  const make = (first: Entry, depth: number): Run => {
    let entry = first;
    const part = [first];
    while (entry.children.length === 1 && entry.children[0]) part.push((entry = entry.children[0]));
    const copies = part.flatMap((each) => each.copies);
    const unique = (values: string[]) => [...new Set(values)].sort();
    const run: Run = {
      id: `${first.block.space}/${first.block.key}`,
      tenant: first.block.tenant,
      model: first.block.model,
      space: first.block.space,
      depth,
      keys: part.map((each) => each.block.key),
      copies: copies.length,
      bytes: copies.reduce((sum, each) => sum + each.charged_bytes, 0),
      treeBytes: 0,
      treeBlocks: 0,
      hits: first.copies.reduce((sum, each) => sum + each.hits, 0),
      usedAt: Math.max(...copies.map((each) => each.used_at)),
      storedAt: Math.min(...copies.map((each) => each.stored_at)),
      pinned: part.filter((each) => each.copies.some((copy) => copy.pins.length > 0)).length,
      leased: part.filter((each) => each.copies.some((copy) => copy.leases > 0)).length,
      nodes: unique(copies.map((each) => each.node)),
      tiers: unique(copies.map((each) => each.tier)),
      pins: unique(copies.flatMap((each) => each.pins)),
      orphan: depth === 0 && first.block.parent !== '',
      children: [],
    };
    whole.push({ run, rest: entry.children });
    return run;
  };
  const top = make(root, rootDepth);
  for (let i = 0; i < whole.length; i += 1) {
    const { run, rest } = whole[i]!;
    run.children = rest.map((entry) => make(entry, run.depth + run.keys.length));
  }
  for (const { run } of whole.reverse()) {
    run.treeBytes = run.bytes + run.children.reduce((sum, child) => sum + child.treeBytes, 0);
    run.treeBlocks = run.copies + run.children.reduce((sum, child) => sum + child.treeBlocks, 0);
    run.children = sortedRuns(run.children);
  }
  return top;
}

const sortedRuns = (runs: Run[]) => runs.sort((a, b) => b.treeBytes - a.treeBytes || a.id.localeCompare(b.id));

export interface TreeRow {
  run: Run;
  level: number;
}

/** The visible rows: a run's children follow it while it is open. */
export function visible(runs: readonly Run[], open: ReadonlySet<string>): TreeRow[] {
  const rows: TreeRow[] = [];
  const stack = [...runs].reverse().map((run) => ({ run, level: 0 }));
  for (let row = stack.pop(); row; row = stack.pop()) {
    const { run, level } = row;
    rows.push(row);
    if (open.has(run.id)) stack.push(...[...run.children].reverse().map((child) => ({ run: child, level: level + 1 })));
  }
  return rows;
}

/** Most keys of a prefix that a sweep takes. */
const MAX_KEYS = 4_096;

/** Keys that select a run and everything that continues it: all that was stored after the last of them. */
export function keysOf(run: Run): string[] {
  return run.keys.slice(0, MAX_KEYS);
}

/** Runs that continue a run, at any depth. */
export function continuationsOf(run: Run): number {
  let found = 0;
  const stack = [...run.children];
  for (let each = stack.pop(); each; each = stack.pop()) {
    found += 1;
    stack.push(...each.children);
  }
  return found;
}
