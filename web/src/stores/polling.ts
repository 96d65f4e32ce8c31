/** Ask at once, and again while the tab is visible. Call it in an effect; what `ask` reads does not restart the effect. */

import { untrack } from 'svelte';

export function polled(everyMs: number, ask: () => void): () => void {
  untrack(ask);
  const timer = setInterval(() => document.visibilityState === 'visible' && ask(), everyMs);
  return () => clearInterval(timer);
}
