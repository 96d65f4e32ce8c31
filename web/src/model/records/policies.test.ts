import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { forces, victims, watermarks } from './policies';

it('without a gate the policy says what was evicted, also by limits', () => {
  const [node] = state('fresh').overview.nodes;
  if (!node?.stats) throw new Error('no numbers');
  expect(forces([node]).map(victims)).toEqual(['nothing evicted yet']);
  const after = { ...node.stats, totals: { ...node.stats.totals, evicted_blocks: 9_137 } };
  expect(forces([{ ...node, stats: after }]).map(victims)).toEqual(['9,137 evicted']);
});

it('nodes with the same policy in force are shown once, and a closed gate is apart', () => {
  const { nodes } = state('busy').overview;
  const [both] = forces(nodes);
  expect(both?.names).toEqual(['gpu-a1', 'gpu-a2']);
  expect(both?.force.declined_blocks).toBe(2 * 1_877);
  expect(both && victims(both)).toBe('8.83 M evicted, victims idle 21 min 50 s');
  const closed = nodes.map((node, i) =>
    i === 0 && node.stats ? { ...node, stats: { ...node.stats, policy: { ...node.stats.policy, gate_closed: true } } } : node,
  );
  expect(forces(closed).map(({ names }) => names)).toEqual([['gpu-a1'], ['gpu-a2']]);
  expect(watermarks({ algorithm: 'noop', high_watermark: 1, low_watermark: 1 })).toBe('evicts nothing');
  expect(watermarks({ algorithm: 'lru', high_watermark: 0.97, low_watermark: 0.95 })).toBe('evicts above 97.0 % down to 95.0 %');
});
