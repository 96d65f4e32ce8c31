import type { Node, PolicyStats } from '../../api/types';
import { count, duration, percent } from '../../format';

export interface Force {
  /** Nodes with the same policy in force; counters are sums over them. */
  names: string[];
  force: PolicyStats;
  /** All evictions, whatever their reason: policy, limits of tenants, sweeps. */
  evictedBlocks: number;
}

/** Policies in force, each once. Nodes are grouped if all settings of the policy and the gate are equal. */
export function forces(nodes: Node[]): Force[] {
  const groups = new Map<string, Force>();
  for (const node of nodes) {
    const policy = node.stats?.policy;
    if (!policy) continue;
    const { algorithm, admission, admission_idle_s, gate_closed, high_watermark, low_watermark } = policy;
    const key = [algorithm, admission, admission_idle_s, gate_closed, high_watermark, low_watermark].join();
    const group = groups.get(key);
    if (!group) {
      groups.set(key, { names: [node.name], force: { ...policy }, evictedBlocks: node.stats?.totals.evicted_blocks ?? 0 });
      continue;
    }
    group.names.push(node.name);
    group.evictedBlocks += node.stats?.totals.evicted_blocks ?? 0;
    const { force } = group;
    force.admitted_blocks += policy.admitted_blocks;
    force.declined_blocks += policy.declined_blocks;
    const idle = policy.victim_idle_s ?? null;
    if (idle !== null) force.victim_idle_s = Math.min(force.victim_idle_s ?? Infinity, idle);
  }
  return [...groups.values()];
}

/** Evicted blocks. Their idle time is measured only for the gate, and only for evictions to make room. */
export function victims({ force, evictedBlocks }: Force): string {
  const idle = force.victim_idle_s ?? null;
  const gone = evictedBlocks ? `${count(evictedBlocks)} evicted` : 'nothing evicted yet';
  return idle === null ? gone : `${gone}, victims idle ${duration(idle)}`;
}

export function watermarks(policy: Pick<PolicyStats, 'algorithm' | 'high_watermark' | 'low_watermark'>): string {
  if (policy.algorithm === 'noop') return 'evicts nothing';
  if (policy.high_watermark >= 1) return 'evicts when room is needed';
  return `evicts above ${percent(policy.high_watermark)} down to ${percent(policy.low_watermark)}`;
}
