import { expect, it } from 'vitest';
import { state } from '../../fixtures/states';
import { pinOrder, pinState } from './pins';

const { overview: busy } = state('busy');

it('a pin is judged by what it holds', () => {
  const [pin] = busy.pins;
  if (!pin) throw new Error('no pin');
  const of = (changes: Partial<typeof pin>) => pinState({ ...pin, expired: false, resolved: 8, resident: 8, guaranteed: 8, ...changes });
  expect(of({})).toBe('held');
  expect(of({ resident: 5, guaranteed: 5 })).toBe('partial');
  expect(of({ resident: 0, guaranteed: 0 })).toBe('absent');
  expect(of({ guaranteed: 3, degraded: 5 })).toBe('degraded');
  expect(of({ guaranteed: 0, strength: 'soft' })).toBe('held');
  expect(of({ guaranteed: 3, degraded: 5, expired: true })).toBe('expired');
});

it('pins that hold nothing come first', () => {
  expect([...state('cold').overview.pins].sort(pinOrder).slice(0, 2).map((pin) => pin.name)).toEqual(['code-search-tools', 'next-release']);
});
