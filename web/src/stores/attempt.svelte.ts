/** An action of a dialog: whether it is being carried out, and why the last try failed. */

import { ApiError } from '../api/client';
import type { Problem } from '../api/types';

export class Attempt {
  busy = $state(false);
  problem = $state.raw<Problem | null>(null);

  async run(work: () => Promise<void>): Promise<void> {
    this.busy = true;
    this.problem = null;
    try {
      await work();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.problem;
    } finally {
      this.busy = false;
    }
  }
}
