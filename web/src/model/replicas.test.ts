import { describe, expect, it } from 'vitest';
import type { Overview, Pin } from '../api/types';
import { state } from '../fixtures/states';
import { factSentence } from './facts';
import { conditions } from './nodes';
import { poolState, replicaState, replicasByNode, troubled, waiting, whyNowhere } from './replicas';
import { judge } from './verdict';

function named(overview: Overview, name: string): Pin {
  const pin = overview.pins.find((each) => each.name === name);
  if (!pin) throw new Error(`the state has no pin ${name}`);
  return pin;
}
const pools = (overview: Overview) => overview.nodes.flatMap((node) => node.stats?.replica_pools ?? []);

describe('replicas of pins', () => {
  const busy = state('busy').overview;

  it('are told as all, some, none yet or nowhere', () => {
    expect(replicaState(named(busy, 'launch-day-prefix'))).toBe('host');
    expect(replicaState(named(busy, 'chat-system-prompt'))).toBe('all');
    expect(replicaState(named(busy, 'warmup-next-model'))).toBe('none-yet');
    expect(replicaState(named(state('over-limit').overview, 'code-search-tools'))).toBe('few');
    expect(replicaState(named(state('thousand-tenants').overview, 'chat-system-prompt'))).toBe('nowhere');
  });

  it('are few where one node of several lacks them, whatever the sum is', () => {
    const pin = named(busy, 'chat-system-prompt');
    const few = { type: 'Effective', status: 'False', reason: 'FewReplicas', message: '', since: 0 } as const;
    const status = { ...pin.status, nodes: { 'gpu-a2': { observed_generation: 9, state: 'in_sync' as const, conditions: [few] } } };
    expect(replicaState({ ...pin, status })).toBe('few');
    expect(replicaState({ ...pin, status: { ...status, nodes: { 'gpu-a2': { observed_generation: 9, state: 'in_sync' as const } } } })).toBe('all');
  });

  it('are few where a block has one on one GPU, and lacks one on another', () => {
    const pin = named(busy, 'chat-system-prompt');
    const on = { resolved: 2, resident: 2, bytes: 2, replicas: 3, replica_bytes: 3, replicas_wanted: 4 };
    expect(replicaState({ ...pin, resident: 2, replicas: 3, replicas_wanted: 4, nodes: { a: on } })).toBe('few');
  });

  it('are none where no engine on a GPU reads the pin, and that is no fault', () => {
    const pin = { ...named(busy, 'chat-system-prompt'), replicas: 0, replicas_wanted: 0, nodes: {} };
    expect([replicaState(pin), replicasByNode(pin)]).toEqual(['unread', '']);
    expect(replicaState({ ...pin, resident: 0 })).toBe('none-yet');
  });

  it('that no GPU keeps say why in the words of the node', () => {
    expect(whyNowhere(named(state('thousand-tenants').overview, 'chat-system-prompt'))).toContain('gpu_pool_bytes is 0 there');
    expect(whyNowhere(named(busy, 'chat-system-prompt'))).toBe('');
  });

  it('are counted node by node, and a block may have one on each GPU', () => {
    expect(replicasByNode(named(busy, 'chat-system-prompt'))).toBe('gpu-a1 1,024 of 1,024');
    expect(replicasByNode(named(state('over-limit').overview, 'code-search-tools'))).toBe('gpu-a1 1,408 of 3,584');
    const pin = named(busy, 'chat-system-prompt');
    const on = { resolved: 2, resident: 2, bytes: 2, replicas: 1, replica_bytes: 1, replicas_wanted: 2 };
    const nodes = Object.fromEntries(['a', 'b', 'c', 'd', 'e', 'f'].map((name) => [name, on]));
    expect(replicasByNode({ ...pin, nodes: { ...nodes, g: { ...on, replicas_wanted: 0, replicas: 0 } } })).toBe('a 1 of 2, b 1 of 2, c 1 of 2, d 1 of 2 and 2 more nodes');
  });

  it('that no GPU keeps are a note, and none of a pin that has ended', () => {
    const { overview } = state('thousand-tenants');
    const pins = [named(overview, 'chat-system-prompt')];
    const found = judge({ ...overview, tenants: [], pins }, {}, overview.at);
    expect([found.level, found.findings[0]?.title]).toEqual(['note', 'Pin chat-system-prompt has no replicas on GPUs']);
    expect(judge({ ...overview, tenants: [], pins: pins.map((pin) => ({ ...pin, expired: true })) }, {}, overview.at).level).toBe('good');
  });
});

describe('pools of replicas', () => {
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

  it('with a problem are a warning of the node and of the verdict', () => {
    const { overview } = state('nacked');
    const [node] = overview.nodes.filter((each) => troubled(each).length > 0);
    if (!node) throw new Error('no node has a problem');
    expect(conditions(node).map((each) => each.label)).toContain('replicas: problem');
    const [finding] = judge(overview, {}, overview.at).findings.filter((each) => each.title.startsWith('Replicas'));
    expect(finding).toMatchObject({ level: 'warn', panel: 'nodes', title: 'Replicas on a GPU of gpu-a3 have a problem' });
    expect(finding?.detail).toContain('NVIDIA H200 GPU-91ce2f00');
    expect(finding?.detail).toContain('out of memory');
  });

  it('come and fail as facts that can be read', () => {
    const fact = (name: string, fields: Record<string, unknown>) => factSentence({ name, at: 1, seq: 1, node: 'gpu-a1', fields });
    expect(fact('replica_pool.made', { device: 'GPU-1', name: 'H200', capacity_bytes: 1 << 30 })).toBe('H200 GPU-1 keeps replicas, up to 1 GiB');
    expect(fact('replica_pool.failed', { device: 'GPU-1', problem: 'out of memory' })).toBe('GPU-1: out of memory');
  });
});
