import { ago, bytes, duration, plural } from '../format';
import type { CacheStart, Node } from '../api/types';
import { troubled } from './gpu_copies';

export interface Applied {
  type: string;
  desired: number | null;
  observed: number | null;
  same: boolean;
}

/** Each snapshot type with what the node should have and what it has. */
export function applied(node: Node): Applied[] {
  const types = new Set([...Object.keys(node.desired), ...Object.keys(node.observed)]);
  return [...types].sort().map((type) => {
    const desired = node.desired[type] ?? null;
    const observed = node.observed[type]?.generation ?? null;
    return { type, desired, observed, same: desired === null || desired === observed };
  });
}

const ORDER = ['lost', 'nacked', 'behind', 'joining', 'in_sync'];

/** What needs a look first, then by name. */
export function nodeOrder(a: Node, b: Node): number {
  return ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name);
}

export interface Label {
  text: string;
  /** Whether an operator laid it over what the node tells. */
  own: boolean;
}

/** Labels by which records find a node, by key. */
export function labels(node: Node): Label[] {
  const { labels: all = {}, own_labels: own = {} } = node;
  return Object.keys(all).sort().map((key) => ({ text: `${key}=${all[key]}`, own: key in own }));
}

export interface Condition {
  tone: 'warn' | 'note';
  label: string;
  title: string;
}

/** What else is true of a node besides its state, and not as usual. */
export function conditions(node: Node): Condition[] {
  const { draining = false, clock_offset_s = 0, stats } = node;
  const found: Condition[] = [];
  if (draining) {
    const told = stats?.draining === true;
    found.push({
      tone: told ? 'note' : 'warn',
      label: told ? 'draining' : 'to drain',
      title: told ? 'It takes no new engines and stores nothing more; what is cached is read on' : 'It is told to drain once it is connected',
    });
  }
  if (stats && !stats.armed) {
    found.push({ tone: 'warn', label: 'not enforcing', title: 'It has no snapshot of quotas yet' });
  }
  if (stats?.cold) {
    found.push({ tone: 'warn', label: 'cache cold', title: `${lostAtStart(stats.start)} when it started; it holds less than half of that again` });
  }
  const gpus = troubled(node);
  if (gpus.length > 0) {
    found.push({ tone: 'warn', label: 'GPU copies: problem', title: gpus.map((pool) => `${pool.name} ${pool.device}: ${pool.problem}`).join('; ') });
  }
  if (clock_offset_s !== 0) {
    found.push({
      tone: 'warn',
      label: `clock ${duration(Math.abs(clock_offset_s))} ${clock_offset_s > 0 ? 'ahead' : 'behind'}`,
      title: 'Pins end by the clock of the node: set it right and start the data plane again',
    });
  }
  return found;
}

/** `1,234 blocks (3.4 GiB) were lost`; without the bytes where only the number of blocks is known. */
export function lostAtStart(start: CacheStart): string {
  const size = start.lost_bytes > 0 ? ` (${bytes(start.lost_bytes)})` : '';
  return `${plural(start.lost_blocks, 'block')}${size} ${start.lost_blocks === 1 ? 'was' : 'were'} lost`;
}

/** How the cache of a node began; empty if unknown, as with a data plane of an older release. */
export function cacheStart(node: Node, now: number): string {
  const start = node.stats?.start;
  if (!start) return '';
  const when = ago(now - start.at);
  if (start.kind === 'first') return `new cache, ${when}`;
  if (start.kind === 'warm') return `${plural(start.blocks, 'block')} kept at its start ${when}`;
  if (start.kind !== 'cold') return '';
  return start.released ? `cache released, began empty ${when}` : `cache began empty ${when}`;
}

/** How a node came to be in the fleet. */
export function joined(node: Node): string {
  if (!node.public_key) return 'of this machine';
  return node.joined_by ? `joined by token ${node.joined_by.slice(0, 8)}` : 'joined';
}
