/** The hot prefixes as they were asked for last: nodes are asked anew each time, so the stream does not carry them. */

import { ApiError, getPrefixes } from '../api/client';
import type { PrefixList, Problem } from '../api/types';

const MOST = 50;

export class Prefixes {
  list = $state.raw<PrefixList | null>(null);
  /** Why the last question was not answered; null when it was. The list before stays. */
  problem = $state.raw<Problem | null>(null);
  #asking = false;

  async load(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    try {
      this.list = await getPrefixes(MOST);
      this.problem = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.problem;
      if (error.problem.type.endsWith(':node-unreachable')) this.list = null;
    } finally {
      this.#asking = false;
    }
  }
}
