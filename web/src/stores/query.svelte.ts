/** Result of the latest request: the response to an older request never replaces that to a newer one. */

import { ApiError } from '../api/client';
import type { Problem } from '../api/types';

export class Query<T> {
  value = $state.raw<T | null>(null);
  /** Problem of the last request; null if it succeeded. The previous value stays. */
  problem = $state.raw<Problem | null>(null);
  busy = $state(false);
  #questions = 0;

  /** Drop the value, and the answer to a request under way. */
  clear(): void {
    this.#questions += 1;
    [this.value, this.problem, this.busy] = [null, null, false];
  }

  async ask(question: () => Promise<T>): Promise<void> {
    const mine = (this.#questions += 1);
    this.busy = true;
    try {
      const value = await question();
      if (mine === this.#questions) [this.value, this.problem] = [value, null];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (mine === this.#questions) this.problem = error.problem;
    } finally {
      if (mine === this.#questions) this.busy = false;
    }
  }
}
