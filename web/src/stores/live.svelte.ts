/**
 * What the page knows and how old it is. One instance, made by App. It loads an overview and the last hour, follows the
 * stream, and while the stream is broken asks the API directly: that keeps the numbers as fresh as can be and tells why.
 */

import { ApiError, getEvents, getHistory, getOverview } from '../api/client';
import { Stream, type StreamHandlers } from '../api/stream';
import type { EventList, LarderEvent, History, Overview, Problem } from '../api/types';
import { MAX_EVENTS, kept, merged } from '../model/events';
import { HISTORY_S, NO_HISTORY, continued } from '../model/history';
import { noNodeReports } from '../model/nodes';
import { RefusalWindow } from '../model/refusals';

export type Connection = 'connecting' | 'live' | 'reconnecting';

/** The server sends at least every 5 s; older data is shown as stale. */
export const STALE_S = 10;
/** A tab that wakes up with older data reconnects without waiting for the watchdog. */
const ASLEEP_S = 6;

export interface LiveDeps {
  getOverview(): Promise<Overview>;
  getHistory(seconds: number): Promise<History>;
  getEvents(limit: number): Promise<EventList>;
  stream(handlers: StreamHandlers): Pick<Stream, 'close' | 'now'>;
  nowMs(): number;
}

const BROWSER: LiveDeps = {
  getOverview,
  getHistory,
  getEvents,
  stream: (handlers) => new Stream(handlers),
  nowMs: Date.now,
};

export class Live {
  overview = $state.raw<Overview | null>(null);
  history = $state.raw<History>(NO_HISTORY);
  events = $state.raw<LarderEvent[]>([]);
  /** Known refused blocks of the last minute, by code. */
  refusedLastMinute = $state.raw<Record<string, number>>({});
  /** Whether a whole minute was observed. */
  minuteWatched = $state(false);
  connection = $state<Connection>('connecting');
  /** Problem of the last request to the API; null if it succeeded. */
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
  /** Server time of the last overview, which is the end of the charts. */
  readonly receivedAt = $derived(this.#receivedMs / 1000 + this.#aheadS);
  /** Whether the API requires a login. */
  readonly locked = $derived(this.problem?.status === 401);
  readonly stale = $derived(this.connection === 'reconnecting' || (this.overview !== null && this.ageS > STALE_S));

  readonly #deps: LiveDeps;
  readonly #stream: Pick<Stream, 'close' | 'now'>;
  readonly #refusals = new RefusalWindow();
  /** Whether the history is hidden: it covers all tenants, so limited users may not see it. */
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

  /** Start to follow the stream. Without a history, the charts begin now. */
  start(withHistory = true): void {
    this.#withHistory = withHistory;
    this.#started = true;
    this.retry();
  }

  stop(): void {
    this.#stream.close();
  }

  /** Clear all data, because another user may log in. Call `start` to begin again. */
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

  /** Catch up at once if data was missed, after the tab was shown again or the network came back. */
  wake(): void {
    this.tick();
    if (!this.#started || this.locked) return;
    if (this.connection !== 'reconnecting' && this.ageS <= ASLEEP_S) return;
    if (this.connection === 'live') this.connection = 'reconnecting';
    this.retry();
  }

  /** Retry without waiting for the back-off. */
  retry(): void {
    this.#stream.now();
    void this.#load();
    void this.#loadHistory();
    void this.#loadEvents();
  }

  /** What happened before the page was opened. Without it the list begins now. */
  async #loadEvents(): Promise<void> {
    if (!this.#withHistory) return;
    try {
      this.events = merged(this.events, kept(await this.#deps.getEvents(MAX_EVENTS)));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }

  async #load(): Promise<void> {
    const arrivals = this.#arrivals;
    try {
      const overview = await this.#deps.getOverview();
      this.problem = null;
      // Data that the stream sent meanwhile is newer.
      if (arrivals === this.#arrivals) this.#take(overview);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (arrivals !== this.#arrivals) return;
      this.problem = error.problem;
      // Retrying does not help: `retry` is called after a login.
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
    if (this.#withHistory && noNodeReports(overview.nodes)) return;
    const history = continued(this.history, this.#charted, overview, this.receivedAt);
    if (!history) return;
    this.history = history;
    this.#charted = overview;
  }
}
