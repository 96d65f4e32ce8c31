import { expect, test } from 'vitest';
import { Listing } from './listing.svelte';

const failed = (node: string) => ({ node, error: `${node}: did not answer` });

test('a list is read until its bound, with each node that failed once', async () => {
  const requested: string[] = [];
  const list = new Listing(async (cursor) => {
    requested.push(cursor);
    const at = Number(cursor);
    return { items: [at, at], next_cursor: at < 9 ? String(at + 1) : '', failed_nodes: [failed('a'), ...(at ? [failed('b')] : [])] };
  }, 4);
  await list.load();
  expect(requested).toEqual(['', '1']);
  expect([list.items, list.more]).toEqual([[0, 0, 1, 1], true]);
  expect(list.failed).toEqual([failed('a'), failed('b')]);
});
