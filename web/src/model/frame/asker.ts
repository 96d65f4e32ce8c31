/** The user of the page, and what they may see and do. */

import type { RecordType } from '../records/fields';
import type { Session } from '../../api/types';

export interface Asker {
  /** Shown names of the tenants that they are limited to; null: all. */
  tenants: string[] | null;
  /** May change quotas and pins, at least those of their tenants. */
  operates: boolean;
  /** Reads the audit. */
  administers: boolean;
  /** Role of the token. */
  role: string;
  /** What changes with the session must send; empty without a session. */
  csrf: string;
}

/** No user is known yet, or no token is required. */
export const ANYBODY: Asker = { tenants: null, operates: true, administers: false, role: 'operator', csrf: '' };

export function askerOf(who: Session | null): Asker {
  if (!who) return ANYBODY;
  const operates = who.role === 'operator' || who.role === 'admin';
  return { tenants: who.tenants, operates, administers: who.role === 'admin', role: who.role, csrf: who.csrf_token };
}

/** Whether they may change what belongs to no tenant: policies, tiers, engines. */
export function operatesFleet(asker: Asker): boolean {
  return asker.operates && asker.tenants === null;
}

/** Whether the asker may change records of a type, at least those of its tenants. */
export function mayChange(asker: Asker, type: RecordType): boolean {
  if (type === 'quotas' || type === 'pins') return asker.operates;
  return type === 'ceilings' ? asker.tenants === null && (asker.administers || asker === ANYBODY) : operatesFleet(asker);
}

/** Why they may not change it, as a sentence. */
export function whyNot(asker: Asker, type?: RecordType): string {
  const limited = asker.tenants === null ? '' : `, limited to ${asker.tenants.join(', ')}`;
  return `Your token has the role ${asker.role}${limited}. Changes here need the role ${type === 'ceilings' ? 'admin' : 'operator'}${asker.operates || type === 'ceilings' ? ' for all tenants' : ''}.`;
}
