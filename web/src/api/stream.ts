/**
 * The only module that opens an `EventSource`. It keeps one open: a stream that breaks or falls silent is closed and
 * opened again with back-off and jitter, because browsers give up for good after an HTTP error.
 */

import { read } from './read';
import type { LarderEvent, Overview } from './types';

export const FIRST_RETRY_MS = 500;
export const LAST_RETRY_MS = 30_000;
/** The server sends an overview at least every 5 s; after this long without one the stream is taken for dead. */
export const SILENCE_MS = 12_000;

export interface StreamHandlers {
  overview(overview: Overview): void;
  event(event: LarderEvent): void;
  /** The stream is broken; the next attempt is made in `retryMs`. */
  broken(retryMs: number): void;
}

export interface StreamDeps {
  open(url: string): EventSource;
  random(): number;
}

const BROWSER: StreamDeps = { open: (url) => new EventSource(url), random: Math.random };

/** Doubles with each attempt up to the longest wait; the jitter takes up to half of it away. */
export function retryDelayMs(attempt: number, random: number): number {
  const whole = Math.min(LAST_RETRY_MS, FIRST_RETRY_MS * 2 ** attempt);
  return Math.round(whole * (1 - random / 2));
}

export class Stream {
  readonly #handlers: StreamHandlers;
  readonly #deps: StreamDeps;
  #source: EventSource | null = null;
  #attempt = 0;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #watchdog: ReturnType<typeof setTimeout> | undefined;

  constructor(handlers: StreamHandlers, deps: StreamDeps = BROWSER) {
    this.#handlers = handlers;
    this.#deps = deps;
  }

  open(): void {
    this.close();
    const source = this.#deps.open('api/v1/events');
    this.#source = source;
    this.#watch();
    source.addEventListener('overview', (event) => {
      this.#attempt = 0;
      this.#watch();
      this.#take(event, (data) => this.#handlers.overview(data as Overview));
    });
    source.addEventListener('event', (event) => {
      this.#take(event, (data) => this.#handlers.event(data as LarderEvent));
    });
    source.addEventListener('error', () => this.#break());
  }

  /** Stops everything; nothing is opened again until `open`. */
  close(): void {
    clearTimeout(this.#retry);
    clearTimeout(this.#watchdog);
    this.#source?.close();
    this.#source = null;
  }

  /** Opens afresh, without waiting for the back-off: the tab woke up, or the network came back. */
  now(): void {
    this.#attempt = 0;
    this.open();
  }

  #watch(): void {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#break(), SILENCE_MS);
  }

  #take(event: MessageEvent<string>, handle: (data: unknown) => void): void {
    let data: unknown;
    try {
      data = read(event.data);
    } catch {
      this.#break();
      return;
    }
    handle(data);
  }

  #break(): void {
    this.close();
    const delay = retryDelayMs(this.#attempt, this.#deps.random());
    this.#attempt += 1;
    this.#retry = setTimeout(() => this.open(), delay);
    this.#handlers.broken(delay);
  }
}
