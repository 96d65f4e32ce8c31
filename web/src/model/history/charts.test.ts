import { describe, expect, it } from 'vitest';
import { bridged } from './charts';

describe('charts', () => {
  it('bridges short pauses of requests and leaves long ones open', () => {
    expect(bridged([0, 10, 20, 30], [0.5, null, null, 0.6], 60)).toEqual([0.5, undefined, undefined, 0.6]);
    expect(bridged([0, 10, 90], [0.5, null, 0.6], 60)).toEqual([0.5, null, 0.6]);
    expect(bridged([0, 10], [null, 0.6], 60)).toEqual([null, 0.6]);
  });
});
