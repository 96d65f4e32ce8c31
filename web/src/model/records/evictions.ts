/** What lower limits would evict, as the dry run tells. */

import type { Node, NodeVerdict, Overview, Tenant } from '../../api/types';
import { bytes, named } from '../../format';
import { selects, type Selector } from './records';

const MAX_NAMED = 3;
const listed = (nodes: readonly string[]) => (nodes.length > MAX_NAMED ? `${nodes.length} nodes` : nodes.join(', '));

/** A sentence about the nodes that a record selects and that did not say what they would evict; empty if all did. */
export function unknownLines(nodes: readonly Node[], selector: Selector | undefined, verdicts: readonly NodeVerdict[] | null): string[] {
  if (verdicts === null) return [];
  const answered = new Set(verdicts.filter(({ error }) => !error).map(({ node }) => node));
  const silent = new Set(verdicts.filter(({ error }) => error).map(({ node }) => node));
  for (const node of nodes) if (selector !== undefined && selects(selector, node.labels) && !answered.has(node.name)) silent.add(node.name);
  return silent.size > 0 ? [`What ${listed([...silent].sort())} would evict is not known: no answer came.`] : [];
}

/** A sentence for each tenant and tier, summed over the nodes, most bytes first. */
export function evictionLines(verdicts: readonly NodeVerdict[] | null): string[] {
  const sums = new Map<string, { tenant: string; tier: string; bytes: number; nodes: string[] }>();
  for (const verdict of verdicts ?? []) {
    for (const each of verdict.evictions) {
      const key = `${each.tier}/${each.tenant}`;
      const sum = sums.get(key) ?? { tenant: each.tenant, tier: each.tier, bytes: 0, nodes: [] };
      sum.bytes += each.bytes;
      sum.nodes.push(verdict.node);
      sums.set(key, sum);
    }
  }
  return [...sums.values()]
    .sort((a, b) => b.bytes - a.bytes)
    .map(({ tenant, tier, bytes: size, nodes }) => `Would evict ${bytes(size)} of ${named(tenant)} ${tier ? `from the tier ${tier}` : 'from memory'} at once, on ${listed(nodes)}.`);
}

/** What a floor takes from others: the bytes that the pool has to free as the tenant stores up to it. */
export function sharedLines(tenant: Tenant, floorBytes: unknown, { pool }: Overview): string[] {
  if (typeof floorBytes !== 'number' || floorBytes <= tenant.floor_bytes) return [];
  const free = Math.max(0, pool.capacity_bytes - pool.used_bytes);
  const taken = floorBytes - Math.max(tenant.bytes, tenant.floor_bytes) - free;
  return taken > 0 ? [`As ${named(tenant.tenant)} stores up to its floor, others give up ${bytes(taken)} that they borrow now.`] : [];
}
