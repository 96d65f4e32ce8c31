import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { FIRST_RETRY_MS, LAST_RETRY_MS, SILENCE_MS, Stream, retryDelayMs } from './stream';

/** An EventSource whose events the test sends. */
class Source extends EventTarget {
  closed = false;
  close(): void {
    this.closed = true;
  }
  send(name: string, data: unknown): void {
    this.dispatchEvent(new MessageEvent(name, { data: typeof data === 'string' ? data : JSON.stringify(data) }));
  }
  fail(): void {
    this.dispatchEvent(new Event('error'));
  }
}

function make() {
  const sources: Source[] = [];
  const handlers = { overview: vi.fn(), event: vi.fn(), broken: vi.fn() };
  const stream = new Stream(handlers, {
    open: () => {
      const source = new Source();
      sources.push(source);
      return source as unknown as EventSource;
    },
    random: () => 0,
  });
  const last = () => sources.at(-1) as Source;
  return { stream, handlers, sources, last };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe('the stream', () => {
  it('hands on overviews and events', () => {
    const { stream, handlers, last } = make();
    stream.open();
    last().send('overview', { at: 1 });
    last().send('event', { name: 'pin.expired' });
    expect(handlers.overview).toHaveBeenCalledWith({ at: 1 });
    expect(handlers.event).toHaveBeenCalledWith({ name: 'pin.expired' });
  });

  it('opens again after an error, later each time, at most every half minute', () => {
    const { stream, handlers, sources, last } = make();
    stream.open();
    const waits: number[] = [];
    for (let i = 0; i < 9; i += 1) {
      last().fail();
      waits.push(handlers.broken.mock.lastCall?.[0] as number);
      vi.advanceTimersByTime(waits.at(-1) as number);
    }
    expect(waits.slice(0, 3)).toEqual([FIRST_RETRY_MS, 2 * FIRST_RETRY_MS, 4 * FIRST_RETRY_MS]);
    expect(waits.at(-1)).toBe(LAST_RETRY_MS);
    expect(sources).toHaveLength(10);
    expect(sources.slice(0, 9).every((source) => source.closed)).toBe(true);
  });

  it('starts the back-off anew only after an overview came, not after a mere connection', () => {
    const { stream, handlers, last } = make();
    stream.open();
    last().fail();
    vi.advanceTimersByTime(FIRST_RETRY_MS);
    last().fail();
    expect(handlers.broken).toHaveBeenLastCalledWith(2 * FIRST_RETRY_MS);
    vi.advanceTimersByTime(2 * FIRST_RETRY_MS);
    last().send('overview', {});
    last().fail();
    expect(handlers.broken).toHaveBeenLastCalledWith(FIRST_RETRY_MS);
  });

  it('takes silence for a break, even when events still come', () => {
    const { stream, handlers, sources, last } = make();
    stream.open();
    last().send('overview', {});
    vi.advanceTimersByTime(SILENCE_MS - 1);
    last().send('event', {});
    expect(handlers.broken).not.toHaveBeenCalled();
    vi.advanceTimersByTime(1);
    expect(handlers.broken).toHaveBeenCalledOnce();
    expect(sources[0]?.closed).toBe(true);
  });

  it('takes text that is not JSON for a break', () => {
    const { stream, handlers, last } = make();
    stream.open();
    last().send('overview', '<h1>proxy</h1>');
    expect(handlers.broken).toHaveBeenCalledOnce();
    expect(handlers.overview).not.toHaveBeenCalled();
  });

  it('opens nothing after it was closed, and one source at a time', () => {
    const { stream, sources, last } = make();
    stream.open();
    last().fail();
    stream.now();
    stream.now();
    expect(sources.filter((source) => !source.closed)).toHaveLength(1);
    stream.close();
    vi.advanceTimersByTime(10 * LAST_RETRY_MS);
    expect(sources.every((source) => source.closed)).toBe(true);
    expect(sources).toHaveLength(3);
  });
});

it('takes up to half of the wait away as jitter', () => {
  expect(retryDelayMs(3, 0)).toBe(8 * FIRST_RETRY_MS);
  expect(retryDelayMs(3, 1)).toBe(4 * FIRST_RETRY_MS);
});
