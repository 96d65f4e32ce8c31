/** Which tenants hold the bytes of a pool or a tier, for bars with one part for each of the largest tenants. */

import type { PoolStats, Tenant } from '../../api/types';

/** Tenants with a colour of their own; the others share one. */
export const MAX_TENANTS = 5;

export type ShareKind = `tenant-${number}` | 'others' | 'rest' | 'fragmentation';

export interface Share {
  kind: ShareKind;
  /** Null: no single tenant. */
  tenant: string | null;
  name: string;
  value: number;
}

type Holding = Pick<Tenant, 'tenant' | 'bytes'>;

/** Colours of the largest tenants, so that the bars of one page agree. */
export function ranked(tenants: readonly Holding[]): ReadonlyMap<string, ShareKind> {
  const largest = [...tenants].sort((a, b) => b.bytes - a.bytes).filter(({ bytes }) => bytes > 0);
  return new Map(largest.slice(0, MAX_TENANTS).map(({ tenant }, rank) => [tenant, `tenant-${rank + 1}`]));
}

/** `held`: bytes of all tenants, of which `holdings` may name only some. */
export function sharesOf(holdings: readonly Holding[], ranks: ReadonlyMap<string, ShareKind>, held: number): Share[] {
  const kindOf = ({ tenant }: Holding) => ranks.get(tenant);
  const own = holdings.flatMap((each) => {
    const kind = kindOf(each);
    return kind && each.bytes > 0 ? [{ kind, tenant: each.tenant, name: each.tenant, value: each.bytes }] : [];
  });
  const others = Math.max(0, held - own.reduce((sum, { value }) => sum + value, 0));
  return [...own.sort((a, b) => a.kind.localeCompare(b.kind)), ...(others > 0 ? [{ kind: 'others' as const, tenant: null, name: 'other tenants', value: others }] : [])];
}

/** The whole pool but for what is free. Fragmentation is memory of segments that holds no block: only blocks of the same space can use it. */
export function poolShares(pool: PoolStats, tenants: readonly Holding[], ranks: ReadonlyMap<string, ShareKind>): Share[] {
  const named = tenants.reduce((sum, { bytes }) => sum + bytes, 0);
  const held = Math.max(pool.ready_bytes, Math.min(named, pool.used_bytes));
  const rest = Math.max(0, pool.used_bytes - held);
  const fragmentation = Math.max(0, Math.min(pool.padding_bytes + pool.free_slot_bytes, pool.capacity_bytes - pool.used_bytes));
  return [
    ...sharesOf(tenants, ranks, held),
    ...(rest > 0 ? [{ kind: 'rest' as const, tenant: null, name: 'reserved, quarantined', value: rest }] : []),
    ...(fragmentation > 0 ? [{ kind: 'fragmentation' as const, tenant: null, name: 'fragmentation', value: fragmentation }] : []),
  ];
}
