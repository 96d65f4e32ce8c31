/** What operators did that explains, or will cause, trouble. */

import type { LarderEvent, Overview } from '../../api/types';
import { ago, duration, named, whole } from '../../format';
import type { Finding } from './findings';

/** How long changes are recent, and how many of one kind by one actor are many. */
export const RECENT_S = 600;
const MANY = 10;
const CHANGED = /^(quota|pin|policy|tier|ceiling)\.(created|changed|deleted)$/;
const PAGES = { quota: 'tenants', pin: 'pins', policy: 'policy', tier: 'settings', ceiling: 'settings' } as const;
const PLURALS = { quota: 'quotas', pin: 'pins', policy: 'policies', tier: 'tiers', ceiling: 'ceilings' } as const;

/** The policy `noop` evicts nothing: a full pool refuses what is stored. */
export function evictsNothing(overview: Overview, refusing: boolean): Finding[] {
  const nodes = overview.nodes.filter((node) => node.stats?.policy.algorithm === 'noop').map((node) => node.name);
  if (nodes.length === 0) return [];
  return [
    {
      level: refusing ? 'warn' : 'note',
      title: 'The policy noop evicts nothing',
      detail: `It is in force on ${nodes.length > 3 ? `${nodes.length} nodes` : nodes.join(', ')}: blocks are refused when the pool or a tenant's limit is full.`,
      page: 'policy',
    },
  ];
}

/** One finding for each actor and kind of record with many changes in the last minutes. */
export function manyChanges(events: readonly LarderEvent[], now: number): Finding[] {
  const groups = new Map<string, { kind: keyof typeof PAGES; verb: string; actor: string; count: number; last: number }>();
  for (const { name, actor, at } of events) {
    const [, kind, verb] = CHANGED.exec(name) ?? [];
    if (!kind || !verb || !actor || at < now - RECENT_S) continue;
    const key = `${name}/${actor}`;
    const group = groups.get(key) ?? { kind: kind as keyof typeof PAGES, verb, actor, count: 0, last: at };
    group.count += 1;
    group.last = Math.max(group.last, at);
    groups.set(key, group);
  }
  return [...groups.values()]
    .filter(({ count }) => count >= MANY)
    .map(({ kind, verb, actor, count, last }) => ({
      level: 'note',
      title: `${named(actor)} ${verb} ${whole(count)} ${PLURALS[kind]} within ${duration(RECENT_S)}`,
      detail: `The last one ${ago(Math.max(0, now - last))}. Changes shows each of them.`,
      page: PAGES[kind],
    }));
}
