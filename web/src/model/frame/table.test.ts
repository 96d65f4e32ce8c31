import { describe, expect, it } from 'vitest';
import { matches, orderOf, sorted, turned, type Column } from './table';

interface Row {
  name: string;
  size: number | null;
}

const COLUMNS: Column<Row>[] = [
  { key: 'name', label: 'Name', by: (row) => row.name },
  { key: 'size', label: 'Size', num: true, by: (row) => row.size },
  { key: 'acts', label: '' },
];
const ROWS: Row[] = [
  { name: 'node-10', size: 3 },
  { name: 'node-2', size: null },
  { name: 'node-1', size: 7 },
];
const names = (sort: string) => sorted(ROWS, COLUMNS, sort).map((row) => row.name);

describe('a table', () => {
  it('sorts names up and numbers down, and turns with a minus', () => {
    expect(names('name')).toEqual(['node-1', 'node-2', 'node-10']);
    expect(names('-name')).toEqual(['node-10', 'node-2', 'node-1']);
    expect(names('size')).toEqual(['node-1', 'node-10', 'node-2']);
    expect(names('-size')).toEqual(['node-10', 'node-1', 'node-2']);
    expect(orderOf(COLUMNS, '-size')?.order).toBe('ascending');
  });

  it('keeps the order of the rows without a column to sort by', () => {
    for (const sort of ['', 'acts', 'nothing']) expect(names(sort)).toEqual(['node-10', 'node-2', 'node-1']);
  });

  it('turns the sort with each click on the same column', () => {
    expect([turned('', 'size'), turned('size', 'size'), turned('-size', 'size')]).toEqual(['size', '-size', 'size']);
  });

  it('finds rows by all words', () => {
    expect(matches(' Acme  PROD', 'acme', 'production')).toBe(true);
    expect(matches('acme prod', 'acme')).toBe(false);
    expect(matches('', 'acme')).toBe(true);
  });
});
