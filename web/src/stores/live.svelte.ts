/**
 * What the page knows and how old it is. One instance, made by App. It loads an overview and the last hour, follows the
 * stream, and while the stream is broken asks the API directly: that keeps the numbers as fresh as can be and tells why.
 */

import { ApiError, getHistory, getOverview } from '../api/client';
import { Stream, type StreamHandlers } from '../api/stream';
import type { LarderEvent, History, Overview, Problem } from '../api/types';
import { merged } from '../model/events';
import { HISTORY_S, NO_HISTORY, continued } from '../model/history';
import { RefusalWindow } from '../model/refusals';

export type Connection = 'connecting' | 'live' | 'reconnecting';

/** The server sends at least every 5 s: older numbers than this are shown as old. */
export const STALE_S = 10;
/** A tab that wakes up with numbers older than this does not wait for the watchdog. */
const ASLEEP_S = 6;

export interface LiveDeps {
  getOverview(): Promise<Overview>;
  getHistory(seconds: number): Promise<History>;
  stream(handlers: StreamHandlers): Pick<Stream, 'close' | 'now'>;
  nowMs(): number;
}

const BROWSER: LiveDeps = {
  getOverview,
  getHistory,
  stream: (handlers) => new Stream(handlers),
  nowMs: Date.now,
};

export class Live {
  overview = $state.raw<Overview | null>(null);
  history = $state.raw<History>(NO_HISTORY);
  events = $state.raw<LarderEvent[]>([]);
  /** Refused blocks of the last minute by code, as far as is known. */
  refusedLastMinute = $state.raw<Record<string, number>>({});
  /** A whole minute was watched. */
  minuteWatched = $state(false);
  connection = $state<Connection>('connecting');
  /** Why the API did not answer the last time; null when it did. */
  problem = $state.raw<Problem | null>(null);
  historyProblem = $state.raw<Problem | null>(null);
  #nowMs = $state(0);
  #receivedMs = $state(0);
  /**
   * How far the server's clock is ahead of this one. A quiet server repeats an overview with its old time: the largest
   * difference ever seen is the right one.
   */
  #aheadS = $state(-Infinity);

  /** Seconds since the last overview came, by this browser's clock. */
  readonly ageS = $derived(Math.max(0, (this.#nowMs - this.#receivedMs) / 1000));
  /** Unix seconds by the server's clock, so that a wrong clock here does not move expiries. */
  readonly now = $derived(this.#nowMs / 1000 + this.#aheadS);
  /** The same when the last overview came: how far the charts reach. */
  readonly receivedAt = $derived(this.#receivedMs / 1000 + this.#aheadS);
  /** The API wants to know who asks. */
  readonly locked = $derived(this.problem?.status === 401);
  readonly stale = $derived(this.connection === 'reconnecting' || (this.overview !== null && this.ageS > STALE_S));

  readonly #deps: LiveDeps;
  readonly #stream: Pick<Stream, 'close' | 'now'>;
  readonly #refusals = new RefusalWindow();
  /** The last hour is kept of all tenants together: it is not for everybody. */
  #withHistory = true;
  #started = false;
  #arrivals = 0;
  /** The overview at the last point of the history. */
  #charted: Overview | null = null;

  constructor(deps: LiveDeps = BROWSER) {
    this.#deps = deps;
    this.#nowMs = deps.nowMs();
    this.#stream = deps.stream({
      overview: (overview) => {
        const recovered = this.connection === 'reconnecting';
        this.connection = 'live';
        this.problem = null;
        this.#take(overview);
        if (recovered) void this.#loadHistory();
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

  /** From now on it follows. Without a history the charts begin now. */
  start(withHistory = true): void {
    this.#withHistory = withHistory;
    this.#started = true;
    this.retry();
  }

  stop(): void {
    this.#stream.close();
  }

  /** Somebody else may sit here now: nothing of what was known stays on the page. `start` begins anew. */
  forget(): void {
    this.#started = false;
    this.#stream.close();
    this.overview = null;
    this.history = NO_HISTORY;
    this.events = [];
    this.connection = 'connecting';
    this.problem = null;
  }

  /** Called every second. */
  tick(): void {
    this.#nowMs = this.#deps.nowMs();
  }

  /** The tab was shown again or the network came back: catch up at once when something was missed. */
  wake(): void {
    this.tick();
    if (!this.#started || this.locked) return;
    if (this.connection !== 'reconnecting' && this.ageS <= ASLEEP_S) return;
    if (this.connection === 'live') this.connection = 'reconnecting';
    this.retry();
  }

  /** Tries again without waiting for the back-off. */
  retry(): void {
    this.#stream.now();
    void this.#load();
    void this.#loadHistory();
  }

  async #load(): Promise<void> {
    const arrivals = this.#arrivals;
    try {
      const overview = await this.#deps.getOverview();
      this.problem = null;
      // What the stream sent meanwhile is newer.
      if (arrivals === this.#arrivals) this.#take(overview);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (arrivals !== this.#arrivals) return;
      this.problem = error.problem;
      // Asking again and again does not help: `retry` is called after a login.
      if (this.locked) this.#stream.close();
    }
  }

  async #loadHistory(): Promise<void> {
    if (!this.#withHistory) return;
    try {
      const history = await this.#deps.getHistory(HISTORY_S);
      this.history = history;
      this.#charted = this.overview;
      this.historyProblem = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.historyProblem = error.problem;
    }
  }

  #take(overview: Overview): void {
    this.#arrivals += 1;
    this.#receivedMs = this.#nowMs = this.#deps.nowMs();
    this.#aheadS = Math.max(this.#aheadS, overview.at - this.#receivedMs / 1000);
    this.overview = overview;
    this.#chart(overview);
    this.events = merged(this.events, overview.recent);
    this.#refusals.add(overview, this.receivedAt);
    this.refusedLastMinute = this.#refusals.lastMinute();
    this.minuteWatched = this.#refusals.covered;
  }

  #chart(overview: Overview): void {
    const history = continued(this.history, this.#charted, overview, this.receivedAt);
    if (!history) return;
    this.history = history;
    this.#charted = overview;
  }
}
