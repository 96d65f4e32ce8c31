/** Replicas of pinned blocks in the memory of GPUs: of a pin, and of a GPU's pool. */

import type { Node, Pin, ReplicaPool } from '../api/types';
import { plural, whole } from '../format';

export type ReplicaState = 'host' | 'nowhere' | 'few' | 'none-yet' | 'all';

/** How far a pin of the tier `gpu` is on GPUs. `nowhere`: no node that it is for keeps replicas. */
export function replicaState(pin: Pin): ReplicaState {
  if (pin.tier !== 'gpu') return 'host';
  const reasons = Object.values(pin.status.nodes).flatMap((node) => (node.conditions ?? []).map((condition) => condition.reason));
  if (pin.replicas === 0 && reasons.includes('NoReplicaPool')) return 'nowhere';
  if (pin.resident === 0) return 'none-yet';
  return reasons.includes('FewReplicas') || pin.replicas < pin.resident ? 'few' : 'all';
}

const NODES_SHOWN = 4;

/** `gpu-a1 512 of 512`, for each node that keeps something of the pin. A block may have a replica on each GPU: `1,024 for 512 blocks`. */
export function replicasByNode(pin: Pin): string {
  const nodes = Object.entries(pin.nodes).filter(([, on]) => on.replicas > 0 || on.resident > 0);
  const told = nodes.slice(0, NODES_SHOWN).map(([name, on]) =>
    on.replicas > on.resident ? `${name} ${whole(on.replicas)} for ${plural(on.resident, 'block')}` : `${name} ${whole(on.replicas)} of ${whole(on.resident)}`,
  );
  return told.join(', ') + (nodes.length > told.length ? ` and ${whole(nodes.length - told.length)} more nodes` : '');
}

export type PoolState = 'problem' | 'full' | 'copying' | 'well';

/** What is worth a look about a GPU's pool first. Full: pins want more there than fits, and nothing is on its way. */
export function poolState(pool: ReplicaPool): PoolState {
  if (pool.problem) return 'problem';
  if (pool.copying > 0) return 'copying';
  return waiting(pool) > 0 ? 'full' : 'well';
}

/** Blocks that pins want on the GPU and that are not there. */
export function waiting(pool: ReplicaPool): number {
  return Math.max(0, pool.wanted - pool.replicas);
}

/** GPUs of a node with something to tell. */
export function troubled(node: Node): ReplicaPool[] {
  return (node.stats?.replica_pools ?? []).filter((pool) => pool.problem);
}
