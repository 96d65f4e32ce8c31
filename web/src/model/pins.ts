import type { Pin } from '../api/types';

export type PinState = 'expired' | 'degraded' | 'absent' | 'partial' | 'held';

/** What a pin is worth now. Degraded: some of its resident blocks are beyond the pin budget and may be evicted. */
export function pinState(pin: Pin): PinState {
  if (pin.expired) return 'expired';
  if (pin.degraded > 0) return 'degraded';
  if (pin.resident === 0) return 'absent';
  return pin.resident < pin.resolved ? 'partial' : 'held';
}

const ORDER: PinState[] = ['degraded', 'absent', 'partial', 'held', 'expired'];

/** What needs a look first; then by size and name. */
export function pinOrder(a: Pin, b: Pin): number {
  const byState = ORDER.indexOf(pinState(a)) - ORDER.indexOf(pinState(b));
  return Number(b.holds_nothing) - Number(a.holds_nothing) || byState || b.bytes - a.bytes || a.name.localeCompare(b.name);
}
