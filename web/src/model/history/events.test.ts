import { describe, expect, it } from 'vitest';
import { eventSentence, eventTone, merged } from './events';

describe('events', () => {
  const event = (name: string, fields: Record<string, unknown>) => ({ name, at: 1, seq: 1, node: '', actor: '', fields });

  it('are sentences', () => {
    expect(eventSentence(event('blocks.evicted', { tenant: 'chat', reason: 'room', blocks: 1, bytes: 2048 }))).toBe('chat: 1 block, 2 KiB, for room');
    const moved = { tier: 'disk', moved: 1030, released: 1028, refused: 2 };
    expect(eventSentence(event('move.ended', moved))).toBe('1,030 blocks to disk, 1,028 released, 2 refused');
    expect(eventSentence(event('move.ended', { ...moved, cancelled: true }))).toMatch(/2 refused, cancelled$/);
    const released = { action: 'release', session: 'talk', tenant: 'acme' };
    expect(eventSentence(event('session.action_requested', released))).toBe('release of talk of acme');
    expect(eventSentence(event('move.cancelled', { move: 3, tier: 'disk' }))).toBe('move 3 to disk');
    expect(eventSentence(event('push.nacked', { type: 'pins', generation: 3, faults: [{}] }))).toBe('pins generation 3: 1 fault');
  });

  it('tell of the data plane that ended', () => {
    const exited = event('dataplane.exited', { code: -9, restart_in_s: 0 });
    expect(eventSentence(exited)).toBe('killed by signal 9, started again at once');
    expect(eventTone(exited)).toBe('bad');
    expect(eventSentence(event('dataplane.exited', { code: 1, restart_in_s: 5 }))).toBe('exit code 1, started again in 5 s');
  });

  it('tell of lost caches and pins, and of memory that was released on purpose without a warning', () => {
    const lost = event('cache.started_cold', { reason: 'the memory was gone', released: false, lost_blocks: 4, lost_bytes: 4096 });
    expect([eventSentence(lost), eventTone(lost)]).toEqual(['4 blocks, 4 KiB lost: the memory was gone', 'warn']);
    const released = event('cache.started_cold', { reason: 'released by larder down', released: true, lost_blocks: 4, lost_bytes: 4096 });
    expect([eventSentence(released), eventTone(released)]).toEqual(['the cache began empty: released by larder down', 'plain']);
    const emptied = event('pin.emptied', { pin: 'p', tenant: 'acme', strength: 'guaranteed', blocks: 4 });
    expect([eventSentence(emptied), eventTone(emptied)]).toEqual(['p: none of its 4 blocks is cached any more', 'warn']);
    expect(eventSentence({ ...emptied, fields: { pin: 'p', blocks: 1 } })).toBe('p: its only block is not cached any more');
  });

  it('leave an empty name out, and a client that detaches is no warning', () => {
    expect(eventSentence(event('engine.attached', { engine: '', pid: 7, group: 'g' }))).toBe('pid 7, group g');
    expect(eventSentence(event('engine.attached', { engine: 'e', pid: 7, group: 'g' }))).toBe('e, pid 7, group g');
    expect(eventTone(event('engine.detached', { reason: 'client detached' }))).toBe('plain');
    expect(eventTone(event('engine.detached', { reason: 'died' }))).toBe('warn');
  });

  it('that are new to the page are shown with their fields', () => {
    expect(eventSentence(event('moon.rose', { over: 'hill', times: [1, 2] }))).toBe('over hill, times [1,2]');
  });

  it('are kept up to a bound', () => {
    const many = Array.from({ length: 300 }, (_, i) => ({ ...event('x', {}), seq: i, at: i }));
    expect(merged([], many)).toHaveLength(200);
    expect(merged([], many)[0]?.seq).toBe(299);
    const change = { ...event('policy.created', {}), at: -1 };
    expect(merged([], [change, ...many.map((each) => ({ ...each, name: 'blocks.stored' }))])).toContainEqual(change);
  });

  it('name who caused them, or where', () => {
    expect(eventSentence({ ...event('policy.created', { policy: 'default' }), actor: 'bob' })).toBe('policy default, by bob');
    expect(eventSentence({ ...event('node.lost', {}), node: 'gpu-1' })).toBe('gpu-1');
  });
});
