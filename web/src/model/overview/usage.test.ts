import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { byGroup, byStep } from './usage';

it('usage is summed up by group, who held most first, and adds up to the totals', () => {
  const { usage } = state('busy');
  const rows = byGroup(usage);
  expect(rows.map((row) => row.group)).toEqual(['chat', 'code-search', 'batch-eval', 'rag-support', '_default', 'notebooks']);
  expect(rows.reduce((sum, row) => sum + row.used.served_tokens, 0)).toBe(usage.totals.served_tokens);
  expect(usage.items[0]?.served_tokens).toBeLessThan(rows[0]?.used.served_tokens ?? 0);
  expect(byStep(usage)[0]).toMatchObject({ start: usage.to - 3_600, group: '_default' });
});
