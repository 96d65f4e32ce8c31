/** Columns and order of tables. */

export interface Column<Row> {
  key: string;
  label: string;
  title?: string;
  num?: boolean;
  /** Sort descending first, as numbers do. */
  down?: boolean;
  /** CSS width; the other columns share the rest. */
  width?: string;
  /** What the rows are sorted by; a column without it does not sort. */
  by?: (row: Row) => string | number | null;
}

export type Order = 'ascending' | 'descending';

/** Names ascend and numbers descend; a `-` before the key turns that around. */
export function orderOf<Row>(columns: readonly Column<Row>[], sort: string): { column: Column<Row>; order: Order } | null {
  const column = columns.find(({ key, by }) => by && key === sort.replace(/^-/, ''));
  if (!column) return null;
  return { column, order: (column.down ?? column.num ?? false) === sort.startsWith('-') ? 'ascending' : 'descending' };
}

/** The sort after a click on a column. */
export function turned(sort: string, key: string): string {
  return sort === key ? `-${key}` : key;
}

const NAMES = new Intl.Collator('en', { numeric: true });

/** The rows in order. Rows without a value come last, and ties keep their order. */
export function sorted<Row>(rows: readonly Row[], columns: readonly Column<Row>[], sort: string): readonly Row[] {
  const found = orderOf(columns, sort);
  if (!found) return rows;
  const by = found.column.by!;
  const sign = found.order === 'ascending' ? 1 : -1;
  return [...rows].sort((one, other) => {
    const [a, b] = [by(one), by(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return sign * (typeof a === 'string' ? NAMES.compare(a, String(b)) : a - Number(b));
  });
}

/** Whether every word is in one of the texts, whatever its case. */
export function matches(words: string, ...texts: string[]): boolean {
  const all = texts.join('\n').toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}
