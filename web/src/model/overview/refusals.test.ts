import { describe, expect, it } from 'vitest';
import type { Overview } from '../../api/types';
import { state } from '../../fixtures/states';
import { RefusalWindow } from './refusals';

const { overview: busy } = state('busy');

describe('refusals of the last minute', () => {
  const refused = (counts: Record<string, number>): Overview => ({ ...busy, recent: [], refused: counts });

  it('are the growth of the counters inside the window', () => {
    const window = new RefusalWindow();
    window.add(refused({ pool_full: 10 }), 0);
    expect(window.lastMinute()).toEqual({});
    window.add(refused({ pool_full: 13, over_limit: 2 }), 30);
    expect(window.lastMinute()).toEqual({ pool_full: 3, over_limit: 2 });
    window.add(refused({ pool_full: 13, over_limit: 2 }), 95);
    expect(window.lastMinute()).toEqual({});
  });

  it('are taken from the recent events for the time before the page was opened', () => {
    const window = new RefusalWindow();
    const { overview } = state('over-limit');
    window.add(overview, overview.at);
    expect(window.lastMinute()).toEqual({ over_limit: 48 });
    expect(window.covered).toBe(false);
    window.add(overview, overview.at + 60);
    expect(window.lastMinute()).toEqual({});
    expect(window.covered).toBe(true);
  });

  it('start anew when a counter fell, because a node went', () => {
    const window = new RefusalWindow();
    window.add(refused({ pool_full: 10 }), 0);
    window.add(refused({ pool_full: 2 }), 10);
    expect(window.lastMinute()).toEqual({});
  });
});
