/** All pages of a list, up to a bound. A list that is read again replaces the previous one when it is complete. */

import { ApiError } from '../api/client';
import type { Problem } from '../api/types';

export const MAX_ITEMS = 10_000;

export interface ListPage<T> {
  items: T[];
  total?: number;
  next_cursor?: string;
}

export class Listing<T> {
  items = $state.raw<T[] | null>(null);
  total = $state(0);
  problem = $state.raw<Problem | null>(null);
  readonly #page: (cursor: string) => Promise<ListPage<T>>;
  #reading = false;
  #again = false;

  constructor(page: (cursor: string) => Promise<ListPage<T>>) {
    this.#page = page;
  }

  /** A call while the list is being read reads it once more afterwards. */
  async load(): Promise<void> {
    if (this.#reading) {
      this.#again = true;
      return;
    }
    this.#reading = true;
    try {
      do {
        this.#again = false;
        await this.#read();
      } while (this.#again);
    } finally {
      this.#reading = false;
    }
  }

  async #read(): Promise<void> {
    try {
      const items: T[] = [];
      let cursor = '';
      let total = 0;
      do {
        const page = await this.#page(cursor);
        items.push(...page.items);
        cursor = page.next_cursor ?? '';
        total = page.total ?? items.length;
      } while (cursor && items.length < MAX_ITEMS);
      [this.items, this.total, this.problem] = [items, total, null];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.problem;
    }
  }
}
