import { describe, expect, it } from 'vitest';
import type { Overview, Pin } from '../../api/types';
import { state } from '../../fixtures/states';
import { eventSentence } from '../history/events';
import { poolState, gpuCopyState, gpuCopiesByNode, waiting, whyNowhere } from './gpu_copies';

function named(overview: Overview, name: string): Pin {
  const pin = overview.pins.find((each) => each.name === name);
  if (!pin) throw new Error(`the state has no pin ${name}`);
  return pin;
}
const pools = (overview: Overview) => overview.nodes.flatMap((node) => node.stats?.gpu_copy_pools ?? []);

describe('GPU copies of pins', () => {
  const busy = state('busy').overview;

  it('are told as all, some, none yet or nowhere', () => {
    expect(gpuCopyState(named(busy, 'launch-day-prefix'))).toBe('host');
    expect(gpuCopyState(named(busy, 'chat-system-prompt'))).toBe('all');
    expect(gpuCopyState(named(busy, 'warmup-next-model'))).toBe('none-yet');
    expect(gpuCopyState(named(state('over-limit').overview, 'code-search-tools'))).toBe('few');
    expect(gpuCopyState(named(state('thousand-tenants').overview, 'chat-system-prompt'))).toBe('nowhere');
  });

  it('are few where one node of several lacks them, whatever the sum is', () => {
    const pin = named(busy, 'chat-system-prompt');
    const few = { type: 'Effective', status: 'False', reason: 'FewGpuCopies', message: '', since: 0 } as const;
    const status = { ...pin.status, nodes: { 'gpu-a2': { observed_generation: 9, state: 'in_sync' as const, conditions: [few] } } };
    expect(gpuCopyState({ ...pin, status })).toBe('few');
    expect(gpuCopyState({ ...pin, status: { ...status, nodes: { 'gpu-a2': { observed_generation: 9, state: 'in_sync' as const } } } })).toBe('all');
  });

  it('are few where a block has one on one GPU, and lacks one on another', () => {
    const pin = named(busy, 'chat-system-prompt');
    const on = { resolved: 2, resident: 2, bytes: 2, gpu_copies: 3, gpu_copy_bytes: 3, gpu_copies_wanted: 4, tiers: {}, only_in_tiers: 0, not_loaded: '' };
    expect(gpuCopyState({ ...pin, resident: 2, gpu_copies: 3, gpu_copies_wanted: 4, nodes: { a: on } })).toBe('few');
  });

  it('are none where no engine on a GPU reads the pin, and that is no fault', () => {
    const pin = { ...named(busy, 'chat-system-prompt'), gpu_copies: 0, gpu_copies_wanted: 0, nodes: {} };
    expect([gpuCopyState(pin), gpuCopiesByNode(pin)]).toEqual(['unread', '']);
    expect(gpuCopyState({ ...pin, resident: 0 })).toBe('none-yet');
  });

  it('that no GPU keeps say why in the words of the node', () => {
    expect(whyNowhere(named(state('thousand-tenants').overview, 'chat-system-prompt'))).toContain('gpu_pool_bytes is 0 there');
    expect(whyNowhere(named(busy, 'chat-system-prompt'))).toBe('');
  });

  it('are counted node by node, and a block may have one on each GPU', () => {
    expect(gpuCopiesByNode(named(busy, 'chat-system-prompt'))).toBe('gpu-a1 1,024 of 1,024');
    expect(gpuCopiesByNode(named(state('over-limit').overview, 'code-search-tools'))).toBe('gpu-a1 1,408 of 3,584');
    const pin = named(busy, 'chat-system-prompt');
    const on = { resolved: 2, resident: 2, bytes: 2, gpu_copies: 1, gpu_copy_bytes: 1, gpu_copies_wanted: 2, tiers: {}, only_in_tiers: 0, not_loaded: '' };
    const nodes = Object.fromEntries(['a', 'b', 'c', 'd', 'e', 'f'].map((name) => [name, on]));
    expect(gpuCopiesByNode({ ...pin, nodes: { ...nodes, g: { ...on, gpu_copies_wanted: 0, gpu_copies: 0 } } })).toBe('a 1 of 2, b 1 of 2, c 1 of 2, d 1 of 2 and 2 more nodes');
  });
});

describe('pools of GPU copies', () => {
  it('are well, on their way, full or in trouble', () => {
    const [well] = pools(state('busy').overview);
    const [full] = pools(state('over-limit').overview);
    const [broken] = pools(state('nacked').overview).filter((pool) => pool.problem);
    if (!well || !full || !broken) throw new Error('a state lacks its pool');
    expect([poolState(well), waiting(well)]).toEqual(['well', 0]);
    expect([poolState(full), waiting(full)]).toEqual(['full', 1_088]);
    expect(poolState({ ...full, used_bytes: full.capacity_bytes - 1 })).toBe('not-all');
    expect(poolState({ ...full, copying: 3 })).toBe('copying');
    expect(poolState({ ...broken, copying: 3 })).toBe('problem');
    expect(waiting({ ...well, wanted: 1 })).toBe(0);
  });

  it('come and fail as events that can be read', () => {
    const event = (name: string, fields: Record<string, unknown>) => eventSentence({ name, at: 1, seq: 1, node: 'gpu-a1', actor: '', fields });
    expect(event('gpu_copy_pool.created', { device: 'GPU-1', name: 'H200', capacity_bytes: 1 << 30 })).toBe('H200 GPU-1 keeps GPU copies, up to 1 GiB');
    expect(event('gpu_copy_pool.failed', { device: 'GPU-1', reason: 'out of memory' })).toBe('GPU-1: out of memory');
  });
});
