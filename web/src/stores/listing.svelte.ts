/** All pages of a list, up to a bound. A list that is read again replaces the previous one when it is complete. */

import { ApiError } from '../api/client';
import type { NodeError, Problem } from '../api/types';

export const MAX_ITEMS = 10_000;

export interface ListPage<T> {
  items: T[];
  total?: number;
  next_cursor?: string;
  failed_nodes?: NodeError[];
}

export class Listing<T> {
  items = $state.raw<T[] | null>(null);
  total = $state(0);
  /** More items follow those that were read. */
  more = $state(false);
  /** Nodes whose items are missing, each once. */
  failed = $state.raw<NodeError[]>([]);
  problem = $state.raw<Problem | null>(null);
  readonly #page: (cursor: string) => Promise<ListPage<T>>;
  readonly #most: number;
  #reading = false;
  #again = false;

  /** `most`: no page is read after so many items. */
  constructor(page: (cursor: string) => Promise<ListPage<T>>, most = MAX_ITEMS) {
    this.#page = page;
    this.#most = most;
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
      const failed = new Map<string, NodeError>();
      let cursor = '';
      let total = 0;
      do {
        const page = await this.#page(cursor);
        items.push(...page.items);
        for (const each of page.failed_nodes ?? []) failed.set(each.node, each);
        cursor = page.next_cursor ?? '';
        total = page.total ?? items.length;
      } while (cursor && items.length < this.#most);
      [this.items, this.total, this.more, this.failed, this.problem] = [items, total, cursor !== '', [...failed.values()], null];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.problem = error.problem;
    }
  }
}
