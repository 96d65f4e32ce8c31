import type { Tenant } from '../../api/types';
import { bytes, plural, share } from '../../format';
import { tierShares } from '../nodes/tiers';

/** Tenants of a text with one in each line, since their names may have blanks and commas; null: none is named. */
export function tenantsOf(text: string): string[] | null {
  const names = text.split('\n').map((each) => each.trim()).filter(Boolean);
  return names.length > 0 ? names : null;
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

/** Bytes above the floor: another tenant's floor may take them. */
export function borrowed(tenant: Tenant): number {
  return Math.max(0, tenant.bytes - (tenant.effective_floor_bytes ?? tenant.floor_bytes));
}

/** `9 GiB of 10 GiB`, `9 GiB, no quota`. */
export function usage(tenant: Tenant): string {
  if (tenant.limit_bytes === null) return `${bytes(tenant.bytes)}, ${tenant.managed ? 'no limit' : 'no quota'}`;
  return `${bytes(tenant.bytes)} of ${bytes(tenant.limit_bytes)}`;
}

/** The list with the rows of the stream, which are newer, in place of those of the same tenants. */
export function refreshed<T>(listed: readonly T[] | null, live: readonly T[], key: (row: T) => string): readonly T[] {
  if (!listed) return live;
  const newer = new Map(live.map((row) => [key(row), row]));
  const rows = listed.map((row) => newer.get(key(row)) ?? row);
  if (listed.length >= live.length) return rows;
  const known = new Set(listed.map(key));
  return [...rows, ...live.filter((row) => !known.has(key(row)))];
}
