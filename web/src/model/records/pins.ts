import { plural, whole } from '../../format';
import type { Pin } from '../../api/types';

export type PinState = 'expired' | 'degraded' | 'absent' | 'partial' | 'held';

/** State of a pin. Degraded: some of its resident blocks exceed the pin budget and may be evicted. */
export function pinState(pin: Pin): PinState {
  if (pin.expired) return 'expired';
  if (pin.degraded > 0) return 'degraded';
  if (pin.resident === 0) return 'absent';
  return pin.resident < pin.resolved ? 'partial' : 'held';
}

const ORDER: PinState[] = ['degraded', 'absent', 'partial', 'held', 'expired'];

/** Sort by severity, then by size and name. */
export function pinOrder(a: Pin, b: Pin): number {
  const byState = ORDER.indexOf(pinState(a)) - ORDER.indexOf(pinState(b));
  return Number(b.holds_nothing) - Number(a.holds_nothing) || Number(b.only_in_tiers > 0) - Number(a.only_in_tiers > 0) || byState || b.bytes - a.bytes || a.name.localeCompare(b.name);
}

const NOT_LOADED: Record<string, string> = { budget: 'no room in the pin budget', failed: 'the last load failed, and is tried again', detached: 'loaded once an engine of the model attaches' };

/** What happens to the blocks of a pin that only tiers hold. */
export function whyInTiers(pin: Pin): string {
  return NOT_LOADED[pin.not_loaded] ?? 'being loaded';
}

/** Why it is not known whether a pin holds blocks: tiers are still being listed. Empty if it is known. */
export function unlisted(pin: Pin): string {
  const tiers = pin.unlisted_tiers;
  if (tiers.length === 0) return '';
  const until = tiers.length === 1 ? `the listing of tier ${tiers[0]} is complete` : `the listings of the tiers ${tiers.join(', ')} are complete`;
  return `None of its blocks is in memory. Whether tiers hold them is unknown until ${until}.`;
}

export function onlyInTiers(pin: Pin): string {
  return `${whole(pin.only_in_tiers)} of ${plural(pin.resolved, 'block')} ${pin.only_in_tiers === 1 ? 'is' : 'are'} only in tiers, not in memory: ${whyInTiers(pin)}`;
}
