/** Who looks at the page: what there is to show to them, and what they may run. */

import type { Session } from '../api/types';

export interface Asker {
  /** Shown names of the tenants that they are limited to; null: all. */
  tenants: string[] | null;
  /** May change quotas and pins, at least those of their tenants. */
  operates: boolean;
  /** Reads the audit. */
  administers: boolean;
}

/** Nobody is known yet, or nobody needs a token. */
export const ANYBODY: Asker = { tenants: null, operates: true, administers: false };

export function askerOf(who: Session | null): Asker {
  return who ? { tenants: who.tenants, operates: who.role !== 'viewer', administers: who.role === 'admin' } : ANYBODY;
}
