/** GPU copies of pinned blocks in the memory of GPUs: of a pin, and of a GPU's pool. */

import type { Pin, GpuCopyPool } from '../../api/types';
import { whole } from '../../format';

export type GpuCopyState = 'host' | 'nowhere' | 'few' | 'none-yet' | 'unread' | 'all';

/** State of the GPU copies of a pin. `nowhere`: no selected node keeps GPU copies. `unread`: no engine on a GPU currently reads the pin. */
export function gpuCopyState(pin: Pin): GpuCopyState {
  if (pin.tier !== 'gpu') return 'host';
  if (pin.gpu_copies === 0 && saying(pin, 'NoGpuCopyPool')) return 'nowhere';
  if (pin.resident === 0) return 'none-yet';
  if (pin.gpu_copies === 0 && pin.gpu_copies_wanted === 0) return 'unread';
  const lacking = Object.values(pin.nodes).some((on) => on.gpu_copies < on.gpu_copies_wanted);
  return lacking || saying(pin, 'FewGpuCopies') ? 'few' : 'all';
}

/** Why no GPU keeps GPU copies of the pin, as the first node reports it; empty if no node does. */
export function whyNowhere(pin: Pin): string {
  return saying(pin, 'NoGpuCopyPool')?.message ?? '';
}

function saying(pin: Pin, reason: string) {
  return Object.values(pin.status.nodes)
    .flatMap((node) => node.conditions ?? [])
    .find((condition) => condition.reason === reason);
}

const NODES_SHOWN = 4;

/** `gpu-a1 512 of 1,024`, for each node where engines on GPUs read the pin: a block may have a GPU copy on each GPU. Empty where none does. */
export function gpuCopiesByNode(pin: Pin): string {
  const nodes = Object.entries(pin.nodes).filter(([, on]) => on.gpu_copies > 0 || on.gpu_copies_wanted > 0);
  const shown = nodes.slice(0, NODES_SHOWN).map(([name, on]) => `${name} ${whole(on.gpu_copies)} of ${whole(on.gpu_copies_wanted)}`);
  return shown.join(', ') + (nodes.length > shown.length ? ` and ${whole(nodes.length - shown.length)} more nodes` : '');
}

export type PoolState = 'problem' | 'full' | 'not-all' | 'copying' | 'well';

/** Most important state of a GPU's pool. `full` and `not-all`: pins want more than fits, and no copy is running. */
export function poolState(pool: GpuCopyPool): PoolState {
  if (pool.problem) return 'problem';
  if (pool.copying > 0) return 'copying';
  if (waiting(pool) === 0) return 'well';
  return pool.used_bytes >= pool.capacity_bytes ? 'full' : 'not-all';
}

/** Number of blocks that pins want on the GPU but that have no copy there. */
export function waiting(pool: GpuCopyPool): number {
  return Math.max(0, pool.wanted - pool.gpu_copies);
}
