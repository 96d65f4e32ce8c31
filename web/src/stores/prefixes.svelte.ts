/** The hot prefixes of the latest request. Each request queries the nodes, so the stream does not include them. */

import { ApiError, getPrefixes } from '../api/client';
import type { PrefixList, Problem } from '../api/types';

const MOST = 50;

export class Prefixes {
  list = $state.raw<PrefixList | null>(null);
  /** Problem of the last request; null if it succeeded. The previous list stays. */
  problem = $state.raw<Problem | null>(null);
  #asking = false;

  async load(tenant = ''): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    try {
      this.list = await getPrefixes(MOST, tenant);
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
