import { expect, it } from 'vitest';
import type { Node, NodeVerdict } from '../../api/types';
import { unknownLines } from './evictions';

const node = (name: string, labels: Record<string, string> = {}) => ({ name, labels }) as Node;
const verdict = (name: string, error: string | null = null): NodeVerdict => ({ node: name, type: 'quotas', selected: true, accepted: !error, faults: [], error, evictions: [] });
const nodes = [node('a'), node('b', { zone: 'x' }), node('c')];

it('what nodes without an answer would evict is not known, whether they were asked or not', () => {
  expect(unknownLines(nodes, null, [verdict('a', 'no answer'), verdict('b')])).toEqual(['What a, c would evict is not known: no answer came.']);
  expect(unknownLines(nodes, null, [])).toEqual(['What a, b, c would evict is not known: no answer came.']);
  expect(unknownLines(nodes, null, [verdict('a'), verdict('b'), verdict('c')])).toEqual([]);
});

it('nodes that the record does not select evict nothing, and without a dry run nothing is said', () => {
  expect(unknownLines(nodes, { zone: 'x' }, [verdict('b')])).toEqual([]);
  expect(unknownLines(nodes, null, null)).toEqual([]);
});
