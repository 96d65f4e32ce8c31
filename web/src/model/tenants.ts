import type { Tenant } from '../api/types';
import { share } from '../format';

export type TenantColumn = 'tenant' | 'bytes' | 'hits' | 'evicted' | 'refused';

export interface TenantView {
  search: string;
  overOnly: boolean;
  sortBy: TenantColumn;
}

export function hitRatio(tenant: Tenant): number | null {
  return tenant.requested_blocks > 0 ? share(tenant.hit_blocks, tenant.requested_blocks) : null;
}

const VALUE: Record<Exclude<TenantColumn, 'tenant'>, (tenant: Tenant) => number> = {
  bytes: (t) => t.bytes,
  hits: (t) => hitRatio(t) ?? -1,
  evicted: (t) => t.evicted_blocks,
  refused: (t) => t.refused_blocks,
};

/** The tenants to show: names from A, numbers from the largest; equal ones by name, so that rows do not dance. */
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
