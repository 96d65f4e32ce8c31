import { ago, bytes, duration, plural } from '../../format';
import type { CacheStart, Node, NodeState, PoolStats } from '../../api/types';
import type { Level } from '../overview/findings';

export interface Applied {
  type: string;
  desired: number | null;
  observed: number | null;
  same: boolean;
  /** No record of the type was ever made, so there is nothing to apply. */
  nothing: boolean;
}

/** Desired and applied generation of each snapshot type. */
export function applied(node: Node): Applied[] {
  const types = new Set([...Object.keys(node.desired), ...Object.keys(node.observed)]);
  return [...types].sort().map((type) => {
    const desired = node.desired[type] ?? null;
    const observed = node.observed[type]?.generation ?? null;
    const nothing = !desired && observed === null;
    return { type, desired, observed, same: nothing || desired === null || desired === observed, nothing };
  });
}

/** No node sends statistics now, so sums over nodes are not known. False without nodes: nothing is stored then. */
export function noNodeReports(nodes: Node[]): boolean {
  return nodes.length > 0 && nodes.every((node) => node.stats === null);
}

const ORDER = ['lost', 'nacked', 'behind', 'joining', 'in_sync'];

/** Sort by severity, then by name. */
export function nodeOrder(a: Node, b: Node): number {
  return ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name);
}

const MARKS: Record<NodeState, { tone: Level; label: string; title: string }> = {
  in_sync: { tone: 'good', label: 'in sync', title: 'It has applied all snapshots' },
  joining: { tone: 'note', label: 'joining', title: 'It is waiting for its first snapshots' },
  behind: { tone: 'warn', label: 'behind', title: 'A newer generation has not been applied yet' },
  nacked: { tone: 'bad', label: 'nacked', title: 'It refused a snapshot and keeps its last good state' },
  lost: { tone: 'bad', label: 'lost', title: 'It no longer reports' },
};

export function stateMark(node: Node): { tone: Level; label: string; title: string } {
  return MARKS[node.state] ?? { tone: 'note', label: node.state, title: '' };
}

/** The used bytes of a pool by state, as parts of a bar. */
export function poolParts(pool: PoolStats): { kind: 'pinned' | 'ready' | 'reserved' | 'quarantined'; value: number }[] {
  // Pinned bytes are ready bytes: the bar shows them as the first part of those.
  const pinned = Math.min(pool.pinned_bytes, pool.ready_bytes);
  return [
    { kind: 'pinned', value: pinned },
    { kind: 'ready', value: pool.ready_bytes - pinned },
    { kind: 'reserved', value: pool.reserved_bytes },
    { kind: 'quarantined', value: pool.quarantined_bytes },
  ];
}

export interface Label {
  text: string;
  /** Whether an operator set the label, overriding the node's. */
  own: boolean;
}

/** Labels by which records find a node, by key. */
export function labels(node: Node): Label[] {
  const { labels: all = {}, own_labels: own = {} } = node;
  return Object.keys(all).sort().map((key) => ({ text: `${key}=${all[key]}`, own: key in own }));
}

export interface Condition {
  tone: 'bad' | 'warn' | 'note';
  label: string;
  title: string;
}

const LASTING: Record<Node['conditions'][number]['type'], Pick<Condition, 'tone' | 'label'>> = {
  crash_loop: { tone: 'bad', label: 'crash loop' },
  thrashing: { tone: 'warn', label: 'thrashing' },
  tenant_at_limit: { tone: 'warn', label: 'tenant at its limit' },
};

/** Unusual conditions of a node besides its state, by its own fields: findings are bounded in large fleets, and callers
 * who are limited to tenants see none of nodes. */
export function conditions(node: Node): Condition[] {
  const { draining, clock_offset_s, stats } = node;
  const marks: Condition[] = node.conditions.filter(({ ended_at }) => ended_at === null).map(({ type, message }) => ({ ...LASTING[type], title: message }));
  if (draining) {
    const drains = stats?.draining === true;
    marks.push({
      tone: drains ? 'note' : 'warn',
      label: drains ? 'draining' : 'to drain',
      title: drains ? 'It accepts no new engines and stores no new blocks; cached blocks can be read' : 'It receives the request to drain when it connects',
    });
  }
  if (stats && !stats.armed) marks.push({ tone: 'warn', label: 'not enforcing', title: 'It has no snapshot of quotas yet' });
  if (stats?.cold) marks.push({ tone: 'warn', label: 'cache cold', title: `${lostAtStart(stats.start)} when it started; it holds less than half of that again` });
  const pools = (stats?.gpu_copy_pools ?? []).filter(({ problem }) => problem);
  if (pools.length > 0) {
    marks.push({ tone: 'warn', label: 'GPU copies: problem', title: pools.map((pool) => `${pool.name} ${pool.device}: ${pool.problem}`).join('; ') });
  }
  const away = (stats?.tiers ?? []).filter(({ serves }) => !serves);
  const opening = away.length > 0 && away.every(({ state }) => state === 'opening');
  if (away.length > 0) {
    marks.push({
      tone: opening ? 'note' : 'warn',
      label: opening ? 'tier opening' : 'tier out of service',
      title: away.map(({ name, reason }) => (reason ? `${name}: ${reason}` : name)).join('; '),
    });
  }
  if (clock_offset_s) {
    marks.push({
      tone: 'warn',
      label: `clock ${duration(Math.abs(clock_offset_s))} ${clock_offset_s > 0 ? 'ahead' : 'behind'}`,
      title: 'Pins end by the clock of the node: set it right and start the data plane again',
    });
  }
  return marks;
}

/** `1,234 blocks (3.4 GiB) were lost`; without the bytes where only the number of blocks is known. */
function lostAtStart(start: CacheStart): string {
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

/** How a node joined the fleet. */
export function joined(node: Node): string {
  if (!node.public_key) return 'of this machine';
  return node.joined_by ? `joined by token ${node.joined_by.slice(0, 8)}` : 'joined';
}
