import { flushSync } from 'svelte';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { ApiError } from '../api/client';
import type { StreamHandlers } from '../api/stream';
import type { EventList, Overview } from '../api/types';
import { state } from '../fixtures/states';
import { HIDDEN_EVERY_S, Live, STALE_S } from './live.svelte';

const DOWN = new ApiError({ type: 'about:blank', title: 'The API is unreachable', status: 0 });
const { overview: recorded } = state('busy');
const at = (later: number): Overview => ({ ...recorded, at: recorded.at + later });

const LOST = { id: 7, at: recorded.at - 600, name: 'node.lost', node: 'gpu-1', actor: '', fields: {} };
const EVENTS: EventList = { items: [LOST], total: 1, next_cursor: '', not_kept: { before: 0, names: [], dropped: 0, lost: 0 } };

let clockMs: number;
/** By how much the clock was set. */
let setMs: number;
let handlers: StreamHandlers;
let answer: () => Promise<Overview>;
const stream = { close: vi.fn(), now: vi.fn() };
const getEvents = vi.fn<() => Promise<EventList>>();

function make(): Live {
  return new Live({
    getOverview: () => answer(),
    getEvents,
    stream: (given) => {
      handlers = given;
      return stream;
    },
    nowMs: () => clockMs + setMs,
    elapsedMs: () => clockMs,
  });
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 0));

/** Advance the time by this many seconds, with one tick per second as in the page. */
function pass(live: Live, seconds: number): void {
  for (let i = 0; i < seconds; i += 1) {
    clockMs += 1_000;
    live.tick();
  }
  flushSync();
}

beforeEach(() => {
  vi.clearAllMocks();
  // The browser's clock is an hour behind the server's.
  clockMs = (recorded.at - 3_600) * 1000;
  setMs = 0;
  answer = () => Promise.resolve(at(0));
  getEvents.mockResolvedValue(EVENTS);
});

describe('starting', () => {
  it('shows the loaded overview before the stream says anything', async () => {
    const live = make();
    live.start();
    await settled();
    expect(stream.now).toHaveBeenCalledOnce();
    expect(live.overview?.at).toBe(recorded.at);
    expect(live.connection).toBe('connecting');
    expect(live.stale).toBe(false);
  });

  it('shows what happened before, each event once', async () => {
    const live = make();
    live.start();
    await settled();
    const lost = () => live.events.filter((event) => event.at === LOST.at);
    expect(lost()).toHaveLength(1);
    handlers.event({ ...LOST, seq: 3 });
    expect(lost()).toMatchObject([{ seq: 3 }]);
  });

  it('says why there is nothing to show', async () => {
    answer = () => Promise.reject(DOWN);
    const live = make();
    live.start();
    await settled();
    expect(live.overview).toBeNull();
    expect(live.problem?.title).toBe('The API is unreachable');
  });

  it('does without earlier events when those are not for this caller', async () => {
    const live = make();
    live.start(false);
    await settled();
    expect(getEvents).not.toHaveBeenCalled();
  });

  it('asks nothing for somebody who left', async () => {
    const live = make();
    live.start();
    await settled();
    live.forget();
    await settled();
    expect([live.overview, live.events.length]).toEqual([null, 0]);
    expect(stream.now).toHaveBeenCalledOnce();
  });

  it('drops what comes late for somebody who left, whoever logged in since', async () => {
    let send = (): void => undefined;
    const sent = new Promise<void>((resolve) => (send = resolve));
    answer = () => sent.then(() => at(0));
    getEvents.mockReturnValue(sent.then(() => EVENTS));
    const live = make();
    live.start();
    live.forget();
    answer = () => Promise.reject(new ApiError({ type: 'about:blank', title: 'Log in', status: 401 }));
    live.start(false);
    await settled();
    send();
    await settled();
    expect([live.overview, live.events.length, live.locked]).toEqual([null, 0, true]);
  });

  it('drops a late refusal of somebody who left', async () => {
    answer = () => Promise.reject(DOWN);
    const live = make();
    live.start();
    live.forget();
    await settled();
    expect(live.problem).toBeNull();
  });

  it('counts no refusals of the time before a login', () => {
    const live = make();
    handlers.overview(at(0));
    const refused = { ...recorded.refused, pool_full: (recorded.refused.pool_full ?? 0) + 1_000 };
    handlers.overview({ ...at(1), refused });
    expect(live.refusedLastMinute.pool_full).toBeGreaterThanOrEqual(1_000);
    live.forget();
    expect([live.refusedLastMinute, live.minuteWatched]).toEqual([{}, false]);
    handlers.overview({ ...at(2), recent: [], refused });
    expect(live.refusedLastMinute).toEqual({});
  });

  it('prefers what the stream sent meanwhile to a late answer', async () => {
    const live = make();
    live.start();
    handlers.overview(at(5));
    await settled();
    expect(live.overview?.at).toBe(recorded.at + 5);
  });
});

describe('age', () => {
  it('counts from the arrival and marks old numbers stale', () => {
    const live = make();
    handlers.overview(at(0));
    pass(live, STALE_S);
    expect(live.ageS).toBe(STALE_S);
    expect(live.stale).toBe(false);
    pass(live, 1);
    expect(live.stale).toBe(true);
    handlers.overview(at(STALE_S + 1));
    expect(live.ageS).toBe(0);
    expect(live.stale).toBe(false);
  });

  it("tells the server's time whatever this clock says", () => {
    const live = make();
    handlers.overview(at(0));
    pass(live, 7);
    expect(live.now).toBeCloseTo(recorded.at + 7);
  });

  it.each([3_600_000, -3_600_000])('is right again with the next overview after this clock was set by %d ms', (step) => {
    const live = make();
    handlers.overview(at(0));
    setMs = step;
    pass(live, 3);
    handlers.overview(at(3));
    pass(live, 2);
    expect(live.now).toBeCloseTo(recorded.at + 5);
    handlers.overview(at(3));
    expect(live.now).toBeCloseTo(recorded.at + 5);
  });

  it('is not set back when a quiet server repeats an old overview', () => {
    const live = make();
    handlers.overview(at(0));
    pass(live, 5);
    handlers.overview(at(0));
    expect(live.ageS).toBe(0);
    expect(live.now).toBeCloseTo(recorded.at + 5);
  });
});

describe('a broken stream', () => {
  it('makes the numbers stale and asks the API why', async () => {
    const live = make();
    handlers.overview(at(0));
    answer = () => Promise.reject(DOWN);
    handlers.broken(500);
    await settled();
    expect(live.connection).toBe('reconnecting');
    expect(live.stale).toBe(true);
    expect(live.problem?.title).toBe('The API is unreachable');
    expect(live.overview?.at).toBe(recorded.at);
  });

  it('keeps the numbers fresh from the API while only the stream is broken', async () => {
    const live = make();
    handlers.overview(at(0));
    answer = () => Promise.resolve(at(30));
    handlers.broken(500);
    await settled();
    expect(live.overview?.at).toBe(recorded.at + 30);
    expect(live.problem).toBeNull();
    expect(live.stale).toBe(true);
  });

  it('is over with the next overview', async () => {
    const live = make();
    handlers.overview(at(0));
    handlers.broken(500);
    await settled();
    handlers.overview(at(60));
    expect(live.connection).toBe('live');
    expect(live.stale).toBe(false);
  });
});

describe('waking up', () => {
  it('asks nothing before it was started', () => {
    make().wake();
    expect(stream.now).not.toHaveBeenCalled();
  });

  it('catches up at once after a sleep', () => {
    const live = make();
    live.start();
    stream.now.mockClear();
    handlers.overview(at(0));
    clockMs += 600_000;
    live.wake();
    expect(stream.now).toHaveBeenCalledOnce();
    expect(live.stale).toBe(true);
    handlers.overview(at(600));
    expect(live.stale).toBe(false);
  });

  it('does nothing when nothing was missed', () => {
    const live = make();
    live.start();
    stream.now.mockClear();
    handlers.overview(at(0));
    clockMs += 2_000;
    live.wake();
    expect(stream.now).not.toHaveBeenCalled();
  });

  it('does not wait for the back-off when the network is back', async () => {
    const live = make();
    live.start();
    stream.now.mockClear();
    handlers.overview(at(0));
    handlers.broken(30_000);
    await settled();
    live.wake();
    expect(stream.now).toHaveBeenCalledOnce();
  });
});

describe('a hidden tab', () => {
  it('keeps no stream, whatever wakes it', () => {
    const live = make();
    live.show(false);
    live.start();
    live.wake();
    live.retry();
    pass(live, 60);
    expect(stream.now).not.toHaveBeenCalled();
    live.show(true);
    expect(stream.now).toHaveBeenCalledOnce();
    handlers.overview(at(0));
    live.show(false);
    expect(stream.close).toHaveBeenCalled();
  });

  it('asks for what its title says, which is as old as the last answer', async () => {
    const live = make();
    live.start();
    await settled();
    live.show(false);
    answer = () => Promise.resolve(at(60));
    pass(live, HIDDEN_EVERY_S);
    await settled();
    expect([live.overview?.at, live.stale]).toEqual([recorded.at + 60, false]);
    clockMs += 59_000; // browsers slow the timers of hidden tabs down
    answer = () => Promise.reject(DOWN);
    pass(live, 1);
    expect(live.stale).toBe(false);
    await settled();
    expect(live.stale).toBe(true);
    answer = () => Promise.resolve(at(130));
    pass(live, HIDDEN_EVERY_S);
    await settled();
    expect([live.overview?.at, live.stale]).toEqual([recorded.at + 130, false]);
  });

  it('asks as often after the clock was set back', async () => {
    const live = make();
    live.start();
    await settled();
    live.show(false);
    setMs -= 3_600_000;
    answer = () => Promise.resolve(at(60));
    pass(live, HIDDEN_EVERY_S);
    await settled();
    expect(live.overview?.at).toBe(recorded.at + 60);
  });

  it('asks nothing for somebody who left', async () => {
    const live = make();
    live.start();
    live.show(false);
    live.forget();
    answer = vi.fn(() => Promise.resolve(at(0)));
    pass(live, 60);
    live.show(true);
    await settled();
    expect(answer).not.toHaveBeenCalled();
  });
});

it('asks everything again at once when told to', async () => {
  answer = () => Promise.reject(DOWN);
  const live = make();
  live.start();
  await settled();
  answer = () => Promise.resolve(at(0));
  live.retry();
  await settled();
  expect(stream.now).toHaveBeenCalledTimes(2);
  expect(live.problem).toBeNull();
  expect(live.overview).not.toBeNull();
});

describe('events', () => {
  it('are shown once each, newest first', () => {
    const live = make();
    const newer = { name: 'pin.expired', at: recorded.at + 1, seq: 99, node: 'gpu-a1', actor: '', fields: { name: 'x' } };
    handlers.overview(at(0));
    handlers.event(newer);
    handlers.overview({ ...at(1), recent: [...recorded.recent, newer] });
    expect(live.events[0]).toEqual(newer);
    expect(live.events).toHaveLength(recorded.recent.length + 1);
  });
});
