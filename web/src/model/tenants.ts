import type { Tenant } from '../api/types';
import { bytes, plural, share } from '../format';
import { tierShares } from './tiers';

export type TenantColumn = 'tenant' | 'bytes' | 'hits' | 'evicted' | 'refused';

export interface TenantView {
  search: string;
  overOnly: boolean;
  sortBy: TenantColumn;
}

export function hitRatio(tenant: Tenant): number | null {
  return tenant.requested_blocks > 0 ? share(tenant.hit_blocks, tenant.requested_blocks) : null;
}

/** The pool cannot hold the whole floor. */
export function floorShort(tenant: Tenant): boolean {
  return tenant.effective_floor_bytes !== null && tenant.effective_floor_bytes < tenant.floor_bytes;
}

/** `floor 8.00 GiB`, with the effective floor if that is less; empty without a floor. */
export function floorText(tenant: Tenant): string {
  if (!tenant.floor_bytes) return '';
  const short = floorShort(tenant) ? `, ${bytes(tenant.effective_floor_bytes ?? 0)} in effect` : '';
  return `floor ${bytes(tenant.floor_bytes)}${short}`;
}

/** The other fields of a quota that differ from their defaults. */
export function shareText(tenant: Tenant): string {
  return [
    ...(tenant.pinned_bytes || tenant.pin_budget_bytes !== null
      ? [`${bytes(tenant.pinned_bytes)} pinned${tenant.pin_budget_bytes === null ? '' : ` of ${bytes(tenant.pin_budget_bytes)}`}`]
      : []),
    ...(tenant.weight === 1 ? [] : [`weight ${tenant.weight}`]),
    ...(tenant.store_rate_bytes === null ? [] : [`stores ${bytes(tenant.store_rate_bytes)}/s`]),
    ...(tenant.on_exceed === 'reject' ? ['rejects at the limit'] : []),
    ...tierShares(tenant),
    ...(tenant.would_refuse_blocks ? [`would refuse ${plural(tenant.would_refuse_blocks, 'block')}`] : []),
  ].join(' · ');
}

const VALUE: Record<Exclude<TenantColumn, 'tenant'>, (tenant: Tenant) => number> = {
  bytes: (t) => t.bytes,
  hits: (t) => hitRatio(t) ?? -1,
  evicted: (t) => t.evicted_blocks,
  refused: (t) => t.refused_blocks,
};

/** The tenants to show: names ascending, numbers descending; ties by name, so that the order is stable. */
export function arranged(tenants: Tenant[], view: TenantView): Tenant[] {
  const wanted = view.search.trim().toLowerCase();
  const found = tenants.filter(
    (t) => (!view.overOnly || t.over_limit) && (!wanted || t.tenant.toLowerCase().includes(wanted)),
  );
  const { sortBy } = view;
  return found.sort((a, b) => {
    const byValue = sortBy === 'tenant' ? 0 : VALUE[sortBy](b) - VALUE[sortBy](a);
    return byValue || a.tenant.localeCompare(b.tenant);
  });
}
