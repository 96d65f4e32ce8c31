/**
 * What the page knows and how old it is. One instance, made by App. It loads an overview, follows the stream, and while the stream is broken asks the API directly: that keeps the numbers as fresh as can be and tells why.
 * A hidden tab has no stream, because browsers allow six connections to one server, over all tabs.
 */

import { ApiError, getEvents, getOverview } from '../api/client';
import { Stream, type StreamHandlers } from '../api/stream';
import type { EventList, LarderEvent, Overview, Problem } from '../api/types';
import { MAX_EVENTS, kept, merged } from '../model/history/events';
import { RefusalWindow } from '../model/overview/refusals';

export type Connection = 'connecting' | 'live' | 'reconnecting';

/** The server sends at least every 5 s; older data is shown as stale. */
export const STALE_S = 10;
/** A tab that wakes up with older data reconnects without waiting for the watchdog. */
const ASLEEP_S = 6;
/** The two clocks of the browser part by more than this if one is set, or stops while the machine sleeps. */
const CLOCK_SET_MS = 2_000;
/** A hidden tab asks for the overview this often, for its title; browsers may let it ask once a minute. */
export const HIDDEN_EVERY_S = 10;

export interface LiveDeps {
  getOverview(): Promise<Overview>;
  getEvents(of: { limit: number }): Promise<EventList>;
  stream(handlers: StreamHandlers): Pick<Stream, 'close' | 'now'>;
  nowMs(): number;
  /** A clock that is never set. */
  elapsedMs(): number;
}

const BROWSER: LiveDeps = {
  getOverview,
  getEvents,
  stream: (handlers) => new Stream(handlers),
  nowMs: Date.now,
  elapsedMs: () => performance.now(),
};

export class Live {
  overview = $state.raw<Overview | null>(null);
  events = $state.raw<LarderEvent[]>([]);
  /** Known refused blocks of the last minute, by code. */
  refusedLastMinute = $state.raw<Record<string, number>>({});
  /** Whether a whole minute was observed. */
  minuteWatched = $state(false);
  connection = $state<Connection>('connecting');
  /** Problem of the last request to the API; null if it succeeded. */
  problem = $state.raw<Problem | null>(null);
  #nowMs = $state(0);
  #receivedMs = $state(0);
  #hidden = $state(false);
  /**
   * How far the server's clock is ahead of this one. A quiet server repeats an overview with its old time: the largest
   * difference is the right one, of those that were seen since this clock was set.
   */
  #aheadS = $state(-Infinity);

  /** Seconds since the last overview came, by this browser's clock. */
  readonly ageS = $derived(Math.max(0, (this.#nowMs - this.#receivedMs) / 1000));
  /** Unix seconds by the server's clock, so that a wrong clock here does not move expiries. */
  readonly now = $derived(this.#nowMs / 1000 + this.#aheadS);
  /** Server time of the last overview. */
  readonly receivedAt = $derived(this.#receivedMs / 1000 + this.#aheadS);
  /** Whether the API requires a login. */
  readonly locked = $derived(this.problem?.status === 401);
  readonly stale = $derived(this.connection === 'reconnecting' || (this.overview !== null && this.ageS > STALE_S && !this.#hidden));

  readonly #deps: LiveDeps;
  readonly #stream: Pick<Stream, 'close' | 'now'>;
  #refusals = new RefusalWindow();
  /** Whether earlier events can be read: they are of all tenants, so limited users may not see them. */
  #whole = true;
  #started = false;
  /** By the clock that is never set. */
  #requestedMs = 0;
  /** How far the clock is ahead of the one that is never set. */
  #clockMs: number;
  #clockSet = false;
  #arrivals = 0;
  /** Number of the login: answers to requests of an earlier one are dropped. */
  #login = 0;

  constructor(deps: LiveDeps = BROWSER) {
    this.#deps = deps;
    this.#nowMs = deps.nowMs();
    this.#clockMs = this.#nowMs - deps.elapsedMs();
    this.#stream = deps.stream({
      overview: (overview) => {
        this.connection = 'live';
        this.problem = null;
        this.#take(overview);
      },
      event: (event) => {
        this.events = merged(this.events, [event]);
      },
      broken: () => {
        this.connection = 'reconnecting';
        void this.#load();
      },
    });
  }

  /** Start to follow the stream. `whole`: the user is not limited to tenants. */
  start(whole = true): void {
    this.#whole = whole;
    this.#started = true;
    this.retry();
  }

  stop(): void {
    this.#stream.close();
  }

  /** Clear all data, because another user may log in. Call `start` to begin again. */
  forget(): void {
    this.#login += 1;
    this.#started = false;
    this.#stream.close();
    this.overview = null;
    this.events = [];
    this.#refusals = new RefusalWindow();
    this.refusedLastMinute = {};
    this.minuteWatched = false;
    this.connection = 'connecting';
    this.problem = null;
  }

  /** Called every second. */
  tick(): void {
    this.#readClock();
    if (this.#hidden && this.#started && !this.locked && this.#deps.elapsedMs() - this.#requestedMs >= HIDDEN_EVERY_S * 1000) void this.#load();
  }

  /** Follow the stream while the tab is shown, and only ask for the overview while it is hidden. */
  show(shown: boolean): void {
    if (shown === !this.#hidden) {
      if (shown) this.wake();
      return;
    }
    this.#hidden = !shown;
    this.tick();
    if (!shown) this.#stream.close();
    else if (this.#started && !this.locked) this.retry();
  }

  /** Catch up at once if data was missed, after the tab was shown again or the network came back. */
  wake(): void {
    this.tick();
    if (!this.#started || this.locked || this.#hidden) return;
    if (this.connection !== 'reconnecting' && this.ageS <= ASLEEP_S) return;
    if (this.connection === 'live') this.connection = 'reconnecting';
    this.retry();
  }

  /** Retry without waiting for the back-off. */
  retry(): void {
    if (!this.#hidden) this.#stream.now();
    void this.#load();
    void this.#loadEvents();
  }

  /** What happened before the page was opened. Without it the list begins now. */
  async #loadEvents(): Promise<void> {
    if (!this.#whole) return;
    const login = this.#login;
    try {
      const earlier = kept(await this.#deps.getEvents({ limit: MAX_EVENTS }));
      if (login === this.#login) this.events = merged(this.events, earlier);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  async #load(): Promise<void> {
    const [login, arrivals] = [this.#login, this.#arrivals];
    this.#requestedMs = this.#deps.elapsedMs();
    try {
      const overview = await this.#deps.getOverview();
      if (login !== this.#login) return;
      this.problem = null;
      if (this.#hidden) this.connection = 'live';
      // Data that the stream sent meanwhile is newer.
      if (arrivals === this.#arrivals) this.#take(overview);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (login !== this.#login || arrivals !== this.#arrivals) return;
      this.problem = error.problem;
      if (this.#hidden) this.connection = 'reconnecting';
      // Retrying does not help: `retry` is called after a login.
      if (this.locked) this.#stream.close();
    }
  }

  #readClock(): number {
    this.#nowMs = this.#deps.nowMs();
    const clockMs = this.#nowMs - this.#deps.elapsedMs();
    if (Math.abs(clockMs - this.#clockMs) > CLOCK_SET_MS) [this.#clockMs, this.#clockSet] = [clockMs, true];
    return this.#nowMs;
  }

  #take(overview: Overview): void {
    this.#arrivals += 1;
    this.#receivedMs = this.#readClock();
    const aheadS = overview.at - this.#receivedMs / 1000;
    this.#aheadS = this.#clockSet ? aheadS : Math.max(this.#aheadS, aheadS);
    this.#clockSet = false;
    this.overview = overview;
    this.events = merged(this.events, overview.recent);
    this.#refusals.add(overview, this.receivedAt);
    this.refusedLastMinute = this.#refusals.lastMinute();
    this.minuteWatched = this.#refusals.covered;
  }
}
