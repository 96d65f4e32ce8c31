import type { Node } from '../api/types';

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

/** The base name of a model: `meta-llama/Llama-3.1-8B` → `Llama-3.1-8B`. */
export function shortModel(model: string): string {
  return model.split('/').at(-1) ?? model;
}
