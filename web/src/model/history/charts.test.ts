import { describe, expect, it } from 'vitest';
import { bridged, rangeOf } from './charts';

describe('charts', () => {
  it('bridges short pauses of requests and leaves long ones open', () => {
    expect(bridged([0, 10, 20, 30], [0.5, null, null, 0.6], 60)).toEqual([0.5, undefined, undefined, 0.6]);
    expect(bridged([0, 10, 90], [0.5, null, 0.6], 60)).toEqual([0.5, null, 0.6]);
    expect(bridged([0, 10], [null, 0.6], 60)).toEqual([null, 0.6]);
  });

  it('shows five minutes while nothing is older, unless the address names a range', () => {
    const at = [0, 10, 20, 3_400, 3_500, 3_600];
    const young = [[null, null, null, null, 0.5, 0.6]];
    expect(rangeOf('', '1h', at, young)).toBe('5m');
    expect(rangeOf('1d', '1h', at, young)).toBe('1d');
    expect(rangeOf('', '1h', at, [[null, null, 0.5, null, null, 0.6]])).toBe('1h');
    expect(rangeOf('', '5m', [0, 10, 20, 280, 290], [[null, null, 0.5, null, 0.6]])).toBe('5m');
    expect(rangeOf('', '5m', [0, 10, 20, 280, 290], [[null, 0.4, 0.5, null, 0.6]])).toBe('1h');
    expect(rangeOf('', '1h')).toBe('1h');
  });
});
